/*
 * metrics.h - where a run's figures go: metrics.jsonl, TensorBoard's event file, loss.svg, the console.
 *
 * Rank 0 has one; the others have none (NULL is accepted everywhere). On resume, lines of steps that will be made
 * again are cut off first, so metrics.jsonl is one contiguous history. One thread at a time.
 */
#ifndef MS_TRAIN_METRICS_H
#define MS_TRAIN_METRICS_H

#include "base/config.h"

/* Section `report` of the config. */
typedef struct ms_report_config {
    bool tensorboard, svg;
    int64_t every_steps;
} ms_report_config;
extern const ms_config_section ms_report_section;

typedef struct ms_step_metrics {
    int64_t step; /* updates made, this one included: the first is 1 */
    int64_t tokens, samples;
    double loss, grad_norm, clip_scale, lr;
    double step_ms, reduce_ms, update_ms; /* reduce_ms: waited for gradients' sums */
    double tokens_per_s, mfu;
} ms_step_metrics;

typedef struct ms_evaluation_metrics {
    int64_t step, tokens;
    double val_loss, seconds;
} ms_evaluation_metrics;

typedef struct ms_metrics ms_metrics;

/*
 * dir NULL: the console only. config must outlive the handle. Figures after resume_step are dropped from
 * what is there, in metrics.jsonl and in event files; lines of it that stay keep their bytes. Allocates
 * for steps_total - resume_step figures, so that steps do not.
 */
ms_status ms_metrics_open(const char *dir, const ms_report_config *config, int64_t resume_step,
                          int64_t steps_total, bool quiet, ms_metrics **metrics);
ms_status ms_metrics_step(ms_metrics *metrics, const ms_step_metrics *step);
ms_status ms_metrics_evaluation(ms_metrics *metrics, const ms_evaluation_metrics *evaluation);
/* Ends the progress line, so that another message can be printed. */
void ms_metrics_break_line(ms_metrics *metrics);
/* Writes loss.svg a last time; errors of closing are reported. */
ms_status ms_metrics_close(ms_metrics *metrics);

/* A loss curve as SVG, appended to svg: points (step, value) of two series, each in order of steps. Values
 * that are not finite are left out; either series may be empty. */
typedef struct ms_curve {
    const int64_t *steps;
    const double *values;
    int64_t count;
} ms_curve;
ms_status ms_loss_svg(const ms_curve *train, const ms_curve *validation, ms_text *svg);

#endif
