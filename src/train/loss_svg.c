/*
 * loss_svg.c - a run's loss curve as a picture: training loss (thinned to a few hundred points, each the
 * mean of its steps), validation loss with marks, axes with round ticks, a legend with the last values.
 *
 * Stands under metrics.c, which writes it at evaluations and at the end. Everything drawn lies inside
 * the frame, whatever the values: ticks are counted, never stepped to, so that values far beyond the
 * precision of their differences (a run that diverged) end as well.
 * Rejected: a plotting library (a dependency for four shapes); a logarithmic axis (losses of language
 * models span less than a decade).
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "train/metrics.h"

#define WIDTH 860.0
#define HEIGHT 460.0
#define LEFT 76.0
#define RIGHT 30.0
#define TOP 30.0
#define BOTTOM 55.0
#define POINTS_MAX 400
#define TICKS_MAX 24
#define DECIMALS_MAX 9
#define VALUE_MAX 1e100 /* so that sums and differences stay finite */

typedef struct frame {
    double step_min, step_max, value_min, value_max;
} frame;

static bool is_drawable(double value) { return fabs(value) <= VALUE_MAX; } /* NaN is not */

static double x_of(const frame *frame_, double step) {
    double span = frame_->step_max - frame_->step_min;
    return LEFT + (step - frame_->step_min) / span * (WIDTH - LEFT - RIGHT);
}

static double y_of(const frame *frame_, double value) {
    double span = frame_->value_max - frame_->value_min;
    return HEIGHT - BOTTOM - (value - frame_->value_min) / span * (HEIGHT - TOP - BOTTOM);
}

/* A step of 1, 2 or 5 times a power of ten that gives about `wanted` ticks. */
static double round_step(double span, int wanted) {
    double raw = span / wanted;
    double power = pow(10, floor(log10(raw)));
    double multiple = raw / power;
    return power * (multiple < 1.5 ? 1 : multiple < 3.5 ? 2 : multiple < 7.5 ? 5 : 10);
}

static void include(frame *frame_, const ms_curve *curve) {
    for (int64_t i = 0; i < curve->count; i++) {
        if (!is_drawable(curve->values[i])) {
            continue;
        }
        frame_->step_min = fmin(frame_->step_min, (double)curve->steps[i]);
        frame_->step_max = fmax(frame_->step_max, (double)curve->steps[i]);
        frame_->value_min = fmin(frame_->value_min, curve->values[i]);
        frame_->value_max = fmax(frame_->value_max, curve->values[i]);
    }
}

/* Room around the values, so that no span is zero or lost in rounding. */
static frame frame_of(const ms_curve *train, const ms_curve *validation) {
    frame bounds = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    include(&bounds, train);
    include(&bounds, validation);
    if (!isfinite(bounds.step_min)) {
        return (frame){0, 1, 0, 1};
    }
    double size = fmax(fabs(bounds.value_min), fabs(bounds.value_max));
    double margin = fmax((bounds.value_max - bounds.value_min) / 20, 1e-3 * fmax(1, size));
    bounds.value_min -= margin;
    bounds.value_max += margin;
    bounds.step_max = fmax(bounds.step_max, bounds.step_min + 1);
    return bounds;
}

static ms_status draw_value_ticks(const frame *frame_, ms_text *svg) {
    double each = round_step(frame_->value_max - frame_->value_min, 6);
    double first = ceil(frame_->value_min / each);
    int decimals = (int)fmin(fmax(-floor(log10(each) + 1e-9), 0), DECIMALS_MAX);
    for (int i = 0; i < TICKS_MAX && (first + i) * each <= frame_->value_max; i++) {
        double value = (first + i) * each, y = y_of(frame_, value);
        char label[64];
        snprintf(label, sizeof label, fabs(value) < 1e7 ? "%.*f" : "%.*e",
                 fabs(value) < 1e7 ? decimals : 3, value);
        MS_TRY(ms_text_printf(svg,
                              "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                              "stroke=\"#e3e3e3\"/>\n"
                              "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                              LEFT, y, WIDTH - RIGHT, y, LEFT - 8, y + 4, label));
    }
    return MS_OK;
}

static ms_status draw_step_ticks(const frame *frame_, ms_text *svg) {
    double each = fmax(1, round_step(frame_->step_max - frame_->step_min, 8));
    double first = ceil(frame_->step_min / each);
    for (int i = 0; i < TICKS_MAX && (first + i) * each <= frame_->step_max; i++) {
        double x = x_of(frame_, (first + i) * each);
        MS_TRY(ms_text_printf(svg,
                              "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                              "stroke=\"#888\"/>\n"
                              "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                              x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, x, HEIGHT - BOTTOM + 20,
                              (first + i) * each));
    }
    return MS_OK;
}

static ms_status draw_axes(const frame *frame_, ms_text *svg) {
    MS_TRY(draw_value_ticks(frame_, svg));
    MS_TRY(draw_step_ticks(frame_, svg));
    return ms_text_printf(svg,
                          "<path d=\"M%.1f %.1f V%.1f H%.1f\" fill=\"none\" stroke=\"#444\"/>\n"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n"
                          "<text transform=\"translate(18 %.1f) rotate(-90)\" "
                          "text-anchor=\"middle\">loss (nats per token)</text>\n",
                          LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2,
                          HEIGHT - 14, (TOP + HEIGHT - BOTTOM) / 2);
}

/* Means over equal runs of steps, so that a long run stays a small picture. */
static ms_status draw_line(const frame *frame_, const ms_curve *curve, const char *colour,
                           ms_text *svg) {
    int64_t each = ms_ceil_div(ms_max_i64(curve->count, 1), POINTS_MAX);
    MS_TRY(ms_text_printf(svg,
                          "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"%s\" points=\"",
                          colour));
    for (int64_t i = 0; i < curve->count; i += each) {
        double sum = 0, steps = 0, used = 0;
        int64_t end = ms_min_i64(i + each, curve->count);
        for (int64_t j = i; j < end; j++) {
            if (is_drawable(curve->values[j])) {
                used++;
                sum += curve->values[j];
                steps += (double)curve->steps[j];
            }
        }
        if (used > 0) {
            MS_TRY(ms_text_printf(svg, "%.1f,%.1f ", x_of(frame_, steps / used),
                                  y_of(frame_, sum / used)));
        }
    }
    return ms_text_append_z(svg, "\"/>\n");
}

static ms_status draw_marks(const frame *frame_, const ms_curve *curve, const char *colour,
                            ms_text *svg) {
    int64_t each = ms_ceil_div(ms_max_i64(curve->count, 1), POINTS_MAX);
    for (int64_t i = 0; i < curve->count; i += each) {
        if (is_drawable(curve->values[i])) {
            MS_TRY(ms_text_printf(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                                  x_of(frame_, (double)curve->steps[i]),
                                  y_of(frame_, curve->values[i]), colour));
        }
    }
    return MS_OK;
}

static ms_status draw_legend(const ms_curve *curve, const char *name, const char *colour, int row,
                             ms_text *svg) {
    if (curve->count == 0) {
        return MS_OK;
    }
    double x = WIDTH - 320, y = TOP + 14 + row * 18;
    return ms_text_printf(svg,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"290\" height=\"18\" fill=\"#fff\" "
                          "fill-opacity=\"0.8\"/>\n"
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "stroke-width=\"3\"/>\n"
                          "<text x=\"%.1f\" y=\"%.1f\">%s, %.5g at step %" PRId64 "</text>\n",
                          x, y - 13, x + 4, y - 4, x + 28, y - 4, colour, x + 36, y, name,
                          curve->values[curve->count - 1], curve->steps[curve->count - 1]);
}

ms_status ms_loss_svg(const ms_curve *train, const ms_curve *validation, ms_text *svg) {
    static const char *const blue = "#1f6fb4";
    static const char *const orange = "#e07b1a";
    frame bounds = frame_of(train, validation);
    MS_TRY(ms_text_printf(svg,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
                          "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
                          "font-size=\"13\" fill=\"#222\">\n"
                          "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                          WIDTH, HEIGHT, WIDTH, HEIGHT));
    MS_TRY(draw_axes(&bounds, svg));
    MS_TRY(draw_line(&bounds, train, blue, svg));
    if (validation->count > 0) {
        MS_TRY(draw_line(&bounds, validation, orange, svg));
        MS_TRY(draw_marks(&bounds, validation, orange, svg));
    }
    MS_TRY(draw_legend(train, "training", blue, 0, svg));
    MS_TRY(draw_legend(validation, "validation", orange, 1, svg));
    return ms_text_append_z(svg, "</svg>\n");
}
