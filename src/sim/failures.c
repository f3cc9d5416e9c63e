/*
 * Failures and checkpoints: the share of time spent training, and the interval that maximizes it.
 */
#include <mgwfbp/outlook.h>

#include <math.h>

/*
 * With failures at rate 1/M, a stretch of length L that restarts after each failure, with restarts
 * of length R that may fail as well, takes M e^(R/M) (e^(L/M) - 1) on average. A stretch is an
 * interval plus its checkpoint.
 */
double mgw_training_share(double failure_s, double checkpoint_s, double restart_s,
                          double interval_s)
{
    if (!(interval_s > 0))
        return 0;
    if (!(failure_s > 0) || isinf(failure_s))
        return interval_s / (interval_s + checkpoint_s);
    double stretch = expm1((interval_s + checkpoint_s) / failure_s);
    return interval_s / failure_s * exp(-restart_s / failure_s) / stretch;
}

/*
 * The share is largest where (1 - y) e^y = e^-c, with y the interval and c the checkpoint, both
 * divided by M. With t = -ln(1 - y): t - y = c, and y = 1 - e^-t, so t - 1 + e^-t = c. Newton's
 * method solves this from above, where the function is convex and increasing.
 */
double mgw_best_interval(double failure_s, double checkpoint_s)
{
    double c = checkpoint_s / failure_s;
    if (!(c > 0))
        return 0;
    double t = c < 1 ? sqrt(2 * c) + c : c + 1; /* not below the root */
    for (int i = 0; i < 100; i++) {
        /* t + expm1(-t) loses digits for small t; its series does not */
        double value = t < 1e-3 ? t * t * (0.5 - t / 6 + t * t / 24) : t + expm1(-t);
        double next = t - (value - c) / -expm1(-t);
        if (!(next < t) || !(next > 0))
            break;
        t = next;
    }
    return failure_s * -expm1(-t);
}

double mgw_daly_interval(double failure_s, double checkpoint_s)
{
    if (checkpoint_s >= 2 * failure_s)
        return failure_s;
    double part = checkpoint_s / (2 * failure_s);
    double estimate =
        sqrt(2 * checkpoint_s * failure_s) * (1 + sqrt(part) / 3 + part / 9) - checkpoint_s;
    return fmax(estimate, 0);
}
