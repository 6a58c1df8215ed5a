/*
 * metrics.c - the sinks of a run's figures.
 *
 * Main path: train/loop.c -> [ms_metrics_step, ms_metrics_evaluation]. Rank 0 alone has a handle.
 *
 *   metrics.jsonl            one object a line, each in the file with one write(2)
 *   events.out.tfevents.*    the same figures as scalars, a new file each time a run is opened
 *   loss.svg                 drawn from `train` and `validation` (steps and values, all of the run)
 *   console                  a line every so many steps, or one line rewritten on a terminal
 *
 * Invariant: after open, metrics.jsonl and the event files hold no figure of a step that will be made
 * again, so that what they hold at the end is one contiguous history, however often the run was killed.
 * The cut is one rename (metrics.jsonl) or one truncate (event files): a kill in between leaves either
 * file whole, and the next open cuts again.
 * Rejected: appending and letting readers take the last line of a step (every reader would have to know);
 * writing each line anew on resume (a reader's diff would show changes where there are none).
 */
#include "train/metrics.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "format/events.h"
#include "format/jsonl.h"

/* Room made at the start; a run of more steps grows it now and then. */
#define ROOM_POINTS_MAX ((int64_t)1 << 20)
#define TERMINAL_COLUMNS_DEFAULT 80
#define TERMINAL_INTERVAL_S 0.05 /* between two rewritings of the line */
#define LINE_BYTES_MAX 256

#define FIELD(name) offsetof(ms_report_config, name)
static const ms_key keys[] = {
    {"tensorboard", MS_KEY_BOOL, FIELD(tensorboard), "true", "", 0, 0, NULL, false,
     "Write an event file for TensorBoard into the run's directory."},
    {"svg", MS_KEY_BOOL, FIELD(svg), "true", "", 0, 0, NULL, false,
     "Draw loss.svg in the run's directory at evaluations and at the end."},
    {"every_steps", MS_KEY_INT, FIELD(every_steps), "10", "updates", 1, 1e12, NULL, false,
     "Print a progress line after so many updates (on a terminal the line is rewritten)."},
};
const ms_config_section ms_report_section = {
    .name = "report",
    .doc = "Where figures go besides metrics.jsonl.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_report_config),
};

typedef struct history {
    int64_t *steps;
    double *values;
    size_t step_capacity, value_capacity;
    int64_t count;
} history;

struct ms_metrics {
    const ms_report_config *config;
    char dir[MS_PATH_BYTES];
    ms_jsonl_writer *lines;
    ms_events_writer *events;
    history train, validation;
    int64_t steps_total;
    bool terminal, quiet, line_open;
    double smooth_step_ms, printed_at_s;
};

/* ---- what has been ---- */

static ms_status make_room(history *history_, int64_t more) {
    size_t needed = (size_t)(history_->count + ms_min_i64(ms_max_i64(more, 1), ROOM_POINTS_MAX));
    MS_TRY(ms_array_reserve((void **)&history_->steps, &history_->step_capacity, needed,
                            sizeof *history_->steps, MS_MEMORY_PROCESS));
    return ms_array_reserve((void **)&history_->values, &history_->value_capacity, needed,
                            sizeof *history_->values, MS_MEMORY_PROCESS);
}

static ms_status remember(history *history_, int64_t step, double value) {
    MS_TRY(make_room(history_, 1));
    history_->steps[history_->count] = step;
    history_->values[history_->count++] = value;
    return MS_OK;
}

static void release(history *history_) {
    ms_free(history_->steps);
    ms_free(history_->values);
}

static ms_status remember_line(ms_metrics *metrics, const json_t *object, int64_t step) {
    const json_t *loss = json_object_get(object, "loss");
    const json_t *val_loss = json_object_get(object, "val_loss");
    if (json_is_number(loss)) {
        MS_TRY(remember(&metrics->train, step, json_number_value(loss)));
    }
    return json_is_number(val_loss)
               ? remember(&metrics->validation, step, json_number_value(val_loss))
               : MS_OK;
}

/* Lines up to resume_step, as they stand in the file. */
static ms_status keep_lines(ms_metrics *metrics, const char *path, const ms_text *file,
                            int64_t resume_step, ms_text *kept) {
    ms_jsonl_options options = {.allow_truncated_last = true};
    ms_jsonl_reader *reader;
    MS_TRY(ms_jsonl_reader_open_memory(file->bytes, file->length, path, &options, &reader));
    ms_status status = MS_OK;
    while (status == MS_OK) {
        uint64_t begin = ms_jsonl_reader_offset(reader);
        json_t *object = NULL;
        status = ms_jsonl_reader_next(reader, &object);
        uint64_t end = ms_jsonl_reader_offset(reader);
        if (status != MS_OK || object == NULL) {
            break;
        }
        int64_t step = json_integer_value(json_object_get(object, "step"));
        if (step > resume_step) {
            continue;
        }
        status = ms_text_append(kept, file->bytes + begin, (size_t)(end - begin));
        if (status == MS_OK && file->bytes[end - 1] != '\n') { /* a kill took only that */
            status = ms_text_append(kept, "\n", 1);
        }
        if (status == MS_OK) {
            status = remember_line(metrics, object, step);
        }
    }
    ms_jsonl_reader_close(reader);
    return status;
}

static ms_status cut_lines(ms_metrics *metrics, const char *path, int64_t resume_step) {
    ms_text file = {0}, kept = {0};
    ms_status status = ms_file_read(path, SIZE_MAX / 2, &file);
    if (status == MS_OK && file.length > 0) {
        status = keep_lines(metrics, path, &file, resume_step, &kept);
    }
    if (status == MS_OK && kept.length != file.length) {
        status = ms_file_write_atomic(path, kept.length > 0 ? kept.bytes : "", kept.length);
    }
    ms_text_release(&file);
    ms_text_release(&kept);
    return status;
}

static ms_status open_lines(ms_metrics *metrics, int64_t resume_step) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(metrics->dir, "metrics.jsonl", path, sizeof path));
    bool resume = resume_step > 0 && ms_path_exists(path);
    if (resume) {
        MS_TRY(cut_lines(metrics, path, resume_step));
    }
    return ms_jsonl_writer_create(path, resume, &metrics->lines);
}

/* Where the first figure after resume_step stands, or 0: nowhere. */
static ms_status find_later(const char *path, int64_t resume_step, uint64_t *offset) {
    ms_events_reader *reader;
    MS_TRY(ms_events_reader_open(path, &reader));
    *offset = 0;
    ms_event event;
    bool more = true;
    ms_status status;
    while ((status = ms_events_reader_next(reader, &event, &more)) == MS_OK && more) {
        if (event.step > resume_step) {
            *offset = event.offset;
            break;
        }
    }
    ms_events_reader_close(reader);
    return status;
}

/* A file that cannot be read is somebody else's or damaged: it is left as it is. */
static ms_status cut_event_file(const char *path, int64_t resume_step) {
    uint64_t offset = 0;
    ms_status status = find_later(path, resume_step, &offset);
    if (status == MS_ERR_MEMORY) {
        return status;
    }
    if (status != MS_OK) {
        ms_log_warn("the event file is left as it is: %s", ms_error_detail());
    } else if (offset > 0 && truncate(path, (off_t)offset) != 0) {
        ms_log_warn("%s: cannot cut off the figures after step %" PRId64 ": %s", path, resume_step,
                    strerror(errno));
    }
    return MS_OK;
}

static ms_status cut_events(const char *dir, int64_t resume_step) {
    static const char prefix[] = "events.out.tfevents.";
    DIR *stream = opendir(dir);
    if (stream == NULL) {
        return ms_fail(MS_ERR_IO, "%s: cannot read the directory: %s", dir, strerror(errno));
    }
    ms_status status = MS_OK;
    for (struct dirent *entry; status == MS_OK && (entry = readdir(stream)) != NULL;) {
        char path[MS_PATH_BYTES];
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0) {
            status = ms_path_join(dir, entry->d_name, path, sizeof path);
            if (status == MS_OK) {
                status = cut_event_file(path, resume_step);
            }
        }
    }
    closedir(stream);
    return status;
}

/* ---- life ---- */

static void destroy(ms_metrics *metrics) {
    ms_jsonl_writer_destroy(metrics->lines);
    ms_events_writer_destroy(metrics->events);
    release(&metrics->train);
    release(&metrics->validation);
    ms_free(metrics);
}

static ms_status open_files(ms_metrics *metrics, const char *dir, int64_t resume_step) {
    if (strlen(dir) >= sizeof metrics->dir) {
        return ms_fail(MS_ERR_RANGE, "a directory's path of %zu bytes is too long", strlen(dir));
    }
    memcpy(metrics->dir, dir, strlen(dir) + 1);
    MS_TRY(open_lines(metrics, resume_step));
    int64_t more = metrics->steps_total - resume_step;
    MS_TRY(make_room(&metrics->train, more));
    MS_TRY(make_room(&metrics->validation, more));
    if (!metrics->config->tensorboard) {
        return MS_OK;
    }
    MS_TRY(cut_events(dir, resume_step));
    return ms_events_writer_create(dir, &metrics->events); /* last: a failure leaves no empty file */
}

ms_status ms_metrics_open(const char *dir, const ms_report_config *config, int64_t resume_step,
                          int64_t steps_total, bool quiet, ms_metrics **metrics) {
    ms_metrics *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->config = config;
    made->steps_total = steps_total;
    made->quiet = quiet;
    made->terminal = isatty(STDOUT_FILENO) == 1;
    ms_status status = dir != NULL ? open_files(made, dir, resume_step) : MS_OK;
    if (status != MS_OK) {
        destroy(made);
        return status;
    }
    *metrics = made;
    return MS_OK;
}

static ms_status draw(ms_metrics *metrics) {
    if (metrics->lines == NULL || !metrics->config->svg) {
        return MS_OK;
    }
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(metrics->dir, "loss.svg", path, sizeof path));
    ms_curve train = {metrics->train.steps, metrics->train.values, metrics->train.count};
    ms_curve validation = {metrics->validation.steps, metrics->validation.values,
                           metrics->validation.count};
    ms_text svg = {0};
    ms_status status = ms_loss_svg(&train, &validation, &svg);
    if (status == MS_OK) {
        status = ms_file_write_atomic(path, svg.bytes, svg.length);
    }
    ms_text_release(&svg);
    return status;
}

ms_status ms_metrics_close(ms_metrics *metrics) {
    if (metrics == NULL) {
        return MS_OK;
    }
    ms_metrics_break_line(metrics);
    ms_status status = draw(metrics);
    destroy(metrics);
    return status;
}

/* ---- the console ---- */

void ms_metrics_break_line(ms_metrics *metrics) {
    if (metrics != NULL && metrics->line_open) {
        printf("\n");
        fflush(stdout);
        metrics->line_open = false;
    }
}

static int terminal_columns(void) {
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : TERMINAL_COLUMNS_DEFAULT;
}

static void print_step(ms_metrics *metrics, const ms_step_metrics *step) {
    double now_s = ms_clock_s();
    bool last = step->step == metrics->steps_total;
    bool due = step->step % metrics->config->every_steps == 0 || step->step == 1 || last;
    if (metrics->terminal) {
        due = last || now_s - metrics->printed_at_s >= TERMINAL_INTERVAL_S;
    }
    if (metrics->quiet || !due) {
        return;
    }
    metrics->printed_at_s = now_s;
    char eta[32], line[LINE_BYTES_MAX];
    double left_s = (double)(metrics->steps_total - step->step) * metrics->smooth_step_ms / 1e3;
    ms_format_duration(left_s, eta, sizeof eta);
    snprintf(line, sizeof line,
             "step %" PRId64 "/%" PRId64
             "  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  MFU %.0f%%  ETA %s",
             step->step, metrics->steps_total, step->loss, step->grad_norm, step->lr,
             step->tokens_per_s, 100 * step->mfu, eta);
    if (metrics->terminal) { /* a line that wraps could not be rewritten */
        printf("\r\033[K%.*s", terminal_columns() - 1, line);
    } else {
        printf("%s\n", line);
    }
    fflush(stdout);
    metrics->line_open = metrics->terminal;
}

static void print_evaluation(ms_metrics *metrics, const ms_evaluation_metrics *evaluation) {
    if (metrics->quiet) {
        return;
    }
    ms_metrics_break_line(metrics);
    printf("step %" PRId64 "/%" PRId64 "  validation loss %.4f  perplexity %.2f  (%" PRId64
           " tokens, %.1f s)\n",
           evaluation->step, metrics->steps_total, evaluation->val_loss, exp(evaluation->val_loss),
           evaluation->tokens, evaluation->seconds);
    fflush(stdout);
}

/* ---- figures ---- */

static ms_status write_step_line(ms_jsonl_writer *lines, const ms_step_metrics *step) {
    ms_jsonl_int(lines, "step", step->step);
    ms_jsonl_int(lines, "tokens", step->tokens);
    ms_jsonl_int(lines, "samples", step->samples);
    ms_jsonl_real(lines, "loss", step->loss);
    ms_jsonl_real(lines, "grad_norm", step->grad_norm);
    ms_jsonl_real(lines, "clip_scale", step->clip_scale);
    ms_jsonl_real(lines, "lr", step->lr);
    ms_jsonl_real(lines, "step_ms", step->step_ms);
    ms_jsonl_real(lines, "reduce_ms", step->reduce_ms);
    ms_jsonl_real(lines, "update_ms", step->update_ms);
    ms_jsonl_real(lines, "tokens_per_s", step->tokens_per_s);
    ms_jsonl_real(lines, "mfu", step->mfu);
    return ms_jsonl_end(lines);
}

static ms_status write_step_scalars(ms_events_writer *events, const ms_step_metrics *step) {
    const struct {
        const char *tag;
        double value;
    } scalars[] = {{"train/loss", step->loss},
                   {"train/grad_norm", step->grad_norm},
                   {"train/lr", step->lr},
                   {"speed/tokens_per_s", step->tokens_per_s},
                   {"speed/step_ms", step->step_ms},
                   {"speed/mfu", step->mfu}};
    double now_s = ms_wall_time_s();
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        MS_TRY(ms_events_writer_scalar(events, scalars[i].tag, step->step, now_s,
                                       (float)scalars[i].value));
    }
    return MS_OK;
}

ms_status ms_metrics_step(ms_metrics *metrics, const ms_step_metrics *step) {
    if (metrics == NULL) {
        return MS_OK;
    }
    metrics->smooth_step_ms = metrics->smooth_step_ms == 0
                                  ? step->step_ms
                                  : 0.95 * metrics->smooth_step_ms + 0.05 * step->step_ms;
    print_step(metrics, step);
    if (metrics->lines == NULL) {
        return MS_OK;
    }
    MS_TRY(write_step_line(metrics->lines, step));
    MS_TRY(remember(&metrics->train, step->step, step->loss));
    return metrics->events != NULL ? write_step_scalars(metrics->events, step) : MS_OK;
}

ms_status ms_metrics_evaluation(ms_metrics *metrics, const ms_evaluation_metrics *evaluation) {
    if (metrics == NULL) {
        return MS_OK;
    }
    print_evaluation(metrics, evaluation);
    if (metrics->lines == NULL) {
        return MS_OK;
    }
    ms_jsonl_int(metrics->lines, "step", evaluation->step);
    ms_jsonl_real(metrics->lines, "val_loss", evaluation->val_loss);
    ms_jsonl_int(metrics->lines, "val_tokens", evaluation->tokens);
    MS_TRY(ms_jsonl_end(metrics->lines));
    MS_TRY(remember(&metrics->validation, evaluation->step, evaluation->val_loss));
    if (metrics->events != NULL) {
        MS_TRY(ms_events_writer_scalar(metrics->events, "validation/loss", evaluation->step,
                                       ms_wall_time_s(), (float)evaluation->val_loss));
    }
    return draw(metrics);
}
