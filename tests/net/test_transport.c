// labels: unit
/*
 * test_transport.c - frames, streams and failure on the transport itself: full rings, wrapped
 * records, growing and staged streams, and what a peer with wrong memory can do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/exchange.h"
#include "net/net_loop.h"

typedef struct pair {
    ms_transport *ranks[2];
    const ms_transport_ops *ops;
} pair;

static pair open_pair(bool staged) {
    ms_loop_options options = {.job = 7, .staged = staged};
    pair made;
    assert_int_equal(ms_loop_create(2, &options, made.ranks), MS_OK);
    made.ops = made.ranks[0]->ops;
    return made;
}

static void close_pair(pair *made) {
    made->ops->destroy(made->ranks[0]);
    made->ops->destroy(made->ranks[1]);
}

static ms_frame frame_of(uint64_t operation, uint64_t bytes) {
    return (ms_frame){.job = 7, .operation = operation, .bytes = bytes, .count = (int64_t)bytes};
}

static void test_frames_in_order(void **state) {
    (void)state;
    pair p = open_pair(false);
    static uint8_t payload[MS_NET_INLINE_BYTES_MAX], got[MS_NET_INLINE_BYTES_MAX];
    uint64_t sent = 0, received = 0;
    bool was_full = false;
    while (received < 5000) { /* sizes that leave every kind of rest at the ring's end */
        while (sent < 5000) {
            uint64_t bytes = sent * 37 % (MS_NET_INLINE_BYTES_MAX + 1);
            memset(payload, (int)(sent & 0xff), bytes);
            ms_frame frame = frame_of(sent, bytes);
            ms_outgoing outgoing;
            ms_status status =
                p.ops->post(p.ranks[0], 1, &frame, payload, bytes, MS_NET_POST_INLINE, &outgoing);
            if (status == MS_AGAIN) {
                was_full = true;
                break;
            }
            assert_int_equal(status, MS_OK);
            assert_int_equal(outgoing.stream, -1);
            sent++;
        }
        ms_incoming incoming;
        for (int i = 0; i < 7 && p.ops->poll(p.ranks[1], 0, &incoming, got); i++) {
            assert_int_equal(incoming.frame.operation, received);
            assert_int_equal(incoming.inline_bytes, received * 37 % (MS_NET_INLINE_BYTES_MAX + 1));
            for (size_t k = 0; k < incoming.inline_bytes; k++) {
                assert_int_equal(got[k], received & 0xff);
            }
            received++;
        }
    }
    assert_true(was_full);
    close_pair(&p);
}

/* Reads what is there; the bytes seen so far. */
static uint64_t drain(pair *p, ms_incoming *incoming, uint8_t *out) {
    const uint8_t *bytes;
    uint64_t count = p->ops->peek(p->ranks[1], incoming, &bytes);
    if (count > 0) {
        memcpy(out + incoming->consumed, bytes, count);
        p->ops->consume(p->ranks[1], incoming, count);
    }
    return incoming->consumed;
}

static void check_stream(bool staged) {
    enum { BYTES = 1000003 };
    pair p = open_pair(staged);
    uint8_t *from = malloc(BYTES), *to = malloc(BYTES), payload[MS_NET_INLINE_BYTES_MAX];
    for (size_t i = 0; i < BYTES; i++) {
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    ms_frame frame = frame_of(1, BYTES);
    ms_outgoing outgoing;
    ms_incoming incoming;
    bool moved = false;
    assert_int_equal(p.ops->post(p.ranks[0], 1, &frame, from, 10, 0, &outgoing), MS_OK);
    assert_int_equal(outgoing.window >= 0, staged);
    assert_true(p.ops->poll(p.ranks[1], 0, &incoming, payload));
    assert_int_equal(drain(&p, &incoming, to), 10); /* no more has been released */
    assert_int_equal(drain(&p, &incoming, to), 10);
    p.ops->advance(p.ranks[0], &outgoing, 200000);
    uint64_t seen = drain(&p, &incoming, to);
    assert_true(staged ? seen > 10 && seen <= 10 + MS__WINDOW_BYTES : seen == 200000);
    assert_false(p.ops->sent(p.ranks[0], &outgoing, &moved));
    p.ops->advance(p.ranks[0], &outgoing, BYTES);
    while (incoming.consumed < BYTES) {
        drain(&p, &incoming, to);
        (void)p.ops->sent(p.ranks[0], &outgoing, &moved);
    }
    assert_true(outgoing.stream < 0 || p.ops->sent(p.ranks[0], &outgoing, &moved));
    assert_memory_equal(from, to, BYTES);
    close_pair(&p);
    free(from);
    free(to);
}

static void test_direct_stream(void **state) {
    (void)state;
    check_stream(false);
}

static void test_staged_stream(void **state) {
    (void)state;
    check_stream(true);
}

/* Streams and windows run out, and come back. */
static void test_streams_run_out(void **state) {
    (void)state;
    pair p = open_pair(true);
    static uint8_t bytes[64], payload[MS_NET_INLINE_BYTES_MAX];
    static ms_outgoing outgoing[MS_NET_STREAMS_MAX + 1];
    ms_incoming incoming;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i <= MS_NET_STREAMS_MAX; i++) {
            ms_frame frame = frame_of((uint64_t)i, sizeof bytes);
            ms_status status = p.ops->post(
                p.ranks[0], 1, &frame, bytes, sizeof bytes,
                i % 2 == 0 ? 0 : MS_NET_POST_INLINE | MS_NET_POST_ACKNOWLEDGE, &outgoing[i]);
            assert_int_equal(status, i < MS_NET_STREAMS_MAX ? MS_OK : MS_AGAIN);
        }
        int count = 0;
        while (p.ops->poll(p.ranks[1], 0, &incoming, payload)) {
            const uint8_t *unused;
            assert_true(incoming.inline_bytes > 0 ||
                        p.ops->peek(p.ranks[1], &incoming, &unused) == 64);
            p.ops->consume(p.ranks[1], &incoming, sizeof bytes);
            count++;
        }
        assert_int_equal(count, MS_NET_STREAMS_MAX);
        for (int i = 0; i < MS_NET_STREAMS_MAX; i++) {
            bool moved = false;
            assert_true(p.ops->sent(p.ranks[0], &outgoing[i], &moved));
            assert_true(moved);
        }
    }
    close_pair(&p);
}

static void test_failure_is_kept(void **state) {
    (void)state;
    pair p = open_pair(false);
    ms_net_failure failure, seen;
    p.ops->failure(p.ranks[1], &seen);
    assert_int_equal(seen.status, MS_OK);
    failure = (ms_net_failure){.status = MS_ERR_ABORTED, .culprit = 0, .sentence = "the first"};
    p.ops->raise(p.ranks[0], &failure);
    failure = (ms_net_failure){.status = MS_ERR_PEER, .culprit = 1, .sentence = "the second"};
    p.ops->raise(p.ranks[1], &failure);
    for (int r = 0; r < 2; r++) {
        assert_true(ms_transport_failed(p.ranks[r]));
        p.ops->failure(p.ranks[r], &seen);
        assert_int_equal(seen.status, MS_ERR_ABORTED);
        assert_int_equal(seen.culprit, 0);
        assert_string_equal(seen.sentence, "the first");
    }
    close_pair(&p);
}

/* ---- A peer's memory that cannot be right
 * -------------------------------------------------------- */

typedef void (*spoiler)(ms__exchange *victim);

static uint32_t *record_words(ms__exchange *victim) {
    return (uint32_t *)(void *)victim->own->inbox[0].ring;
}
static void spoil_length(ms__exchange *victim) {
    record_words(victim)[0] = 0x7fffffe0;
}
static void spoil_zero(ms__exchange *victim) {
    record_words(victim)[0] = 0;
}
static void spoil_odd(ms__exchange *victim) {
    record_words(victim)[0] = 97;
}
static void spoil_type(ms__exchange *victim) {
    record_words(victim)[1] = 9;
}
static void spoil_inline(ms__exchange *victim) {
    record_words(victim)[1] = 1 | 60000u << 16;
}
static void spoil_pad(ms__exchange *victim) {
    record_words(victim)[1] = 2;
}
static void spoil_stream(ms__exchange *victim) {
    record_words(victim)[5] = MS_NET_STREAMS_MAX;
}
static void spoil_negative(ms__exchange *victim) {
    record_words(victim)[5] = 0x80000000u;
}
static void spoil_window(ms__exchange *victim) {
    record_words(victim)[6] = 12345;
}
static void spoil_tail(ms__exchange *victim) {
    atomic_store(&victim->own->inbox[0].tail, MS__RING_BYTES * 3);
}
static void spoil_backwards(ms__exchange *victim) {
    atomic_store(&victim->own->inbox[0].tail, UINT64_MAX - 5);
}

static void test_malformed_records(void **state) {
    (void)state;
    static const spoiler spoilers[] = {spoil_length, spoil_zero,      spoil_odd,    spoil_type,
                                       spoil_inline, spoil_pad,       spoil_stream, spoil_negative,
                                       spoil_window, spoil_backwards, spoil_tail};
    for (size_t i = 0; i < sizeof spoilers / sizeof *spoilers; i++) {
        pair p = open_pair(false);
        uint8_t bytes[100] = {0}, payload[MS_NET_INLINE_BYTES_MAX];
        ms_frame frame = frame_of(0, sizeof bytes);
        ms_outgoing outgoing;
        ms_incoming incoming;
        ms_net_failure seen;
        assert_int_equal(p.ops->post(p.ranks[0], 1, &frame, bytes, sizeof bytes, 0, &outgoing),
                         MS_OK);
        spoilers[i]((ms__exchange *)p.ranks[1]);
        assert_false(p.ops->poll(p.ranks[1], 0, &incoming, payload));
        p.ops->failure(p.ranks[0], &seen);
        assert_int_equal(seen.status, MS_ERR_PEER);
        assert_int_equal(seen.culprit, 0);
        assert_non_null(strstr(seen.sentence, "rank 0 sent a malformed message"));
        close_pair(&p);
    }
}

static void test_malformed_stream(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        pair p = open_pair(true);
        uint8_t bytes[100] = {0}, payload[MS_NET_INLINE_BYTES_MAX];
        ms_frame frame = frame_of(0, sizeof bytes);
        ms_outgoing outgoing;
        ms_incoming incoming;
        const uint8_t *unused;
        bool moved;
        assert_int_equal(p.ops->post(p.ranks[0], 1, &frame, bytes, sizeof bytes, 0, &outgoing),
                         MS_OK);
        assert_true(p.ops->poll(p.ranks[1], 0, &incoming, payload));
        ms__exchange *sender = (ms__exchange *)p.ranks[0];
        ms__stream *stream = ms__control_stream(sender->own, 1, outgoing.stream);
        if (which == 0) {
            atomic_store(&stream->available, 101);
            assert_int_equal(p.ops->peek(p.ranks[1], &incoming, &unused), 0);
        } else {
            atomic_store(&stream->consumed, 1000);
            (void)p.ops->sent(p.ranks[0], &outgoing, &moved);
        }
        assert_true(ms_transport_failed(p.ranks[0]));
        assert_true(ms_transport_failed(p.ranks[1]));
        close_pair(&p);
    }
}

/* Random bytes instead of records never lead outside of the ring (seen by the sanitizers). */
static void test_random_records(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        pair p = open_pair(false);
        ms__exchange *victim = (ms__exchange *)p.ranks[1];
        ms_random_key key = ms_random_key_make(seed, "records");
        uint32_t *words = record_words(victim);
        for (uint64_t i = 0; i < 2048; i++) {
            uint32_t word = ms_random_at(key, 0, i).word[0];
            words[i] = word % 5 == 0 ? word : word % 5 == 1 ? 1 : word % 5 == 2 ? 128 : word % 300;
        }
        atomic_store(&victim->own->inbox[0].tail, 4096 + seed);
        ms_incoming incoming;
        uint8_t payload[MS_NET_INLINE_BYTES_MAX];
        for (int i = 0; i < 100 && p.ops->poll(p.ranks[1], 0, &incoming, payload); i++) {
            assert_true(incoming.inline_bytes <= MS_NET_INLINE_BYTES_MAX);
            assert_true(incoming.stream >= -1 && incoming.stream < MS_NET_STREAMS_MAX);
        }
        close_pair(&p);
    }
}

/* ---- Sleeping
 * ------------------------------------------------------------------------------------ */

static void *wake_later(void *context) {
    pair *p = context;
    ms_sleep_ms(30);
    ms_frame frame = frame_of(0, 0);
    ms_outgoing outgoing;
    p->ops->post(p->ranks[0], 1, &frame, NULL, 0, 0, &outgoing);
    return NULL;
}

static void test_sleep(void **state) {
    (void)state;
    pair p = open_pair(false);
    double start_s = ms_clock_s();
    uint32_t ticket = p.ops->wait_prepare(p.ranks[1]);
    p.ops->wait_commit(p.ranks[1], ticket, ms_clock_ns() + 20000000); /* nobody comes */
    assert_true(ms_clock_s() - start_s >= 0.019);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_later, &p), 0);
    start_s = ms_clock_s();
    ms_incoming incoming;
    uint8_t payload[MS_NET_INLINE_BYTES_MAX];
    while (!p.ops->poll(p.ranks[1], 0, &incoming, payload)) {
        ticket = p.ops->wait_prepare(p.ranks[1]);
        if (p.ops->poll(p.ranks[1], 0, &incoming, payload)) {
            p.ops->wait_cancel(p.ranks[1]);
            break;
        }
        p.ops->wait_commit(p.ranks[1], ticket, ms_clock_ns() + INT64_C(10000000000));
    }
    assert_true(ms_clock_s() - start_s < 5);
    pthread_join(thread, NULL);
    ticket = p.ops->wait_prepare(p.ranks[1]);
    p.ops->wake(p.ranks[1]); /* between the two: commit returns at once */
    start_s = ms_clock_s();
    p.ops->wait_commit(p.ranks[1], ticket, ms_clock_ns() + INT64_C(10000000000));
    assert_true(ms_clock_s() - start_s < 5);
    close_pair(&p);
}

static void test_departed(void **state) {
    (void)state;
    pair p = open_pair(false);
    ms_frame frame = frame_of(3, 0);
    ms_outgoing outgoing;
    ms_incoming incoming;
    uint8_t payload[MS_NET_INLINE_BYTES_MAX];
    assert_int_equal(p.ops->post(p.ranks[0], 1, &frame, NULL, 0, 0, &outgoing), MS_OK);
    assert_false(p.ops->departed(p.ranks[1], 0));
    p.ops->destroy(p.ranks[0]);
    assert_false(p.ops->departed(p.ranks[1], 0)); /* its last words come first */
    assert_true(p.ops->poll(p.ranks[1], 0, &incoming, payload));
    assert_int_equal(incoming.frame.operation, 3);
    assert_true(p.ops->departed(p.ranks[1], 0));
    p.ops->destroy(p.ranks[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_in_order),
        cmocka_unit_test(test_direct_stream),
        cmocka_unit_test(test_staged_stream),
        cmocka_unit_test(test_streams_run_out),
        cmocka_unit_test(test_failure_is_kept),
        cmocka_unit_test(test_malformed_records),
        cmocka_unit_test(test_malformed_stream),
        cmocka_unit_test(test_random_records),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_departed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
