// Writes the optimizers' updates as ONNX: they compute the next parameter, buffers and progress (steps and a number) from these and the
// gradient. The arithmetic is that of ops/kernels/optimizer_rules.def; numbers that depend on the step are computed in float64.
#include <cmath>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using V = OnnxValue;

struct Step {
    const OnnxCall& x;
    V p, g;
    OnnxValues b;  // buffers in the order of the operands
    V t;           // number of steps, including this one: float64
    V number;

    explicit Step(const OnnxCall& call) : x(call) {
        p = operand(0);
        g = operand(1);
        for (int i = 0; i < x.count() - 3; ++i) b.push_back(operand(2 + i));
        const V progress = x[x.count() - 1];
        t = x.gather(progress, 0, 0) + 1;
        number = x.gather(progress, 1, 0);
    }
    V operand(int i) const { return x.cast(x[i].is_number() ? x.scalar(x[i].number(), x.dtype(i)) : x[i], x.dtype(0)); }
    // Returns a number of this step in the parameter's dtype.
    V here(const V& value) const { return x.cast(value, x.dtype(0)); }
    double option(const char* name) const { return x.real(name); }
    V decayed() const {
        const double decay = option("weight_decay");
        return decay == 0 ? g : g + p * decay;
    }
    V is_first() const { return t == 1; }
    void average_moments(const V& d) {
        const double beta1 = option("beta1"), beta2 = option("beta2");
        b[0] = b[0] + (d - b[0]) * (1 - beta1);
        b[1] = b[1] * beta2 + d * d * (1 - beta2);
    }
    V rest(const char* beta) const { return 1 - pow(x.scalar(option(beta), DType::float64), t); }  // 1 - beta^t

    OnnxValues results() const {
        OnnxValues list = {p};
        list.append(b);
        list.push_back(x.concat({x.unsqueeze(t, {0}), x.unsqueeze(number, {0})}, 0));
        return list;
    }
};

OnnxValues sgd_of(const OnnxCall& x) {
    Step s(x);
    const double lr = s.option("lr"), momentum = s.option("momentum"), dampening = s.option("dampening");
    const V d = s.decayed();
    if (x.count() == 3) {
        s.p = s.p - d * lr;
    } else {
        s.b[0] = where(s.is_first(), d, s.b[0] * momentum + d * (1 - dampening));
        s.p = s.p - (x.flag("nesterov") ? d + s.b[0] * momentum : s.b[0]) * lr;
    }
    return s.results();
}

OnnxValues adagrad_of(const OnnxCall& x) {
    Step s(x);
    const V d = s.decayed();
    s.b[0] = s.b[0] + d * d;
    s.p = s.p - d * s.here(s.option("lr") / ((s.t - 1) * s.option("lr_decay") + 1)) / (sqrt(s.b[0]) + s.option("eps"));
    return s.results();
}

OnnxValues adagrad_da_of(const OnnxCall& x) {
    Step s(x);
    s.b[0] = s.b[0] + s.g;
    s.b[1] = s.b[1] + s.g * s.g;
    const V l1 = s.here(s.t * s.option("l1")), within = s.b[0] - s.b[0];
    const V shrunk = where(s.b[0] > l1, s.b[0] - l1, where(s.b[0] < -l1, s.b[0] + l1, within));
    const V down = sqrt(s.b[1]) + s.here(s.t * (s.option("lr") * s.option("l2")));
    s.p = where(down > 0, shrunk * -s.option("lr") / down, within);
    return s.results();
}

OnnxValues adadelta_of(const OnnxCall& x) {
    Step s(x);
    const double rho = s.option("rho"), eps = s.option("eps");
    const V d = s.decayed();
    s.b[0] = s.b[0] * rho + d * d * (1 - rho);
    const V step = sqrt(s.b[1] + eps) / sqrt(s.b[0] + eps) * d;
    s.b[1] = s.b[1] * rho + step * step * (1 - rho);
    s.p = s.p - step * s.option("lr");
    return s.results();
}

OnnxValues rmsprop_of(const OnnxCall& x) {
    Step s(x);
    const double alpha = s.option("alpha"), momentum = s.option("momentum");
    const bool has_momentum = momentum != 0, is_centered = x.flag("centered");
    const V d = s.decayed();
    s.b[0] = s.b[0] * alpha + d * d * (1 - alpha);
    V spread = s.b[0];
    if (is_centered) {
        V& mean = s.b[has_momentum ? 2 : 1];
        mean = mean * alpha + d * (1 - alpha);
        spread = spread - mean * mean;
    }
    V step = d / (sqrt(spread) + s.option("eps"));
    if (has_momentum) step = s.b[1] = s.b[1] * momentum + step;
    s.p = s.p - step * s.option("lr");
    return s.results();
}

OnnxValues adam_of(const OnnxCall& x, bool decoupled) {
    Step s(x);
    const double lr = s.option("lr"), decay = s.option("weight_decay");
    s.average_moments(decoupled ? s.g : s.decayed());
    V largest = s.b[1];
    if (x.count() > 5) largest = s.b[2] = where(s.b[2] > largest, s.b[2], largest);
    const V step_size = s.here(lr / s.rest("beta1")), v_scale = s.here(1 / sqrt(s.rest("beta2")));
    s.p = (decoupled ? s.p * (1 - lr * decay) : s.p) - s.b[0] * step_size / (sqrt(largest) * v_scale + s.option("eps"));
    return s.results();
}

OnnxValues adamax_of(const OnnxCall& x) {
    Step s(x);
    const double beta1 = s.option("beta1");
    const V d = s.decayed();
    s.b[0] = s.b[0] * beta1 + d * (1 - beta1);
    const V size = abs(d) + s.option("eps"), kept = s.b[1] * s.option("beta2");
    s.b[1] = where(kept > size, kept, size);
    s.p = s.p - s.b[0] * s.here(s.option("lr") / s.rest("beta1")) / s.b[1];
    return s.results();
}

OnnxValues nadam_of(const OnnxCall& x) {
    Step s(x);
    const double lr = s.option("lr");
    const auto c = [&](const V& step) { return 1 - pow(x.scalar(0.96, DType::float64), step * s.option("momentum_decay")) * 0.5; };
    const V now = c(s.t) * s.option("beta1"), next = c(s.t + 1) * s.option("beta1");
    s.number = s.number * now;
    const V g_size = (1 - now) * lr / (1 - s.number), m_size = next * lr / (1 - s.number * next), v_scale = 1 / sqrt(s.rest("beta2"));
    const V d = s.decayed();
    s.average_moments(d);
    s.p = s.p - (d * s.here(g_size) + s.b[0] * s.here(m_size)) / (sqrt(s.b[1]) * s.here(v_scale) + s.option("eps"));
    return s.results();
}

OnnxValues radam_of(const OnnxCall& x) {
    Step s(x);
    const double most = 2 / (1 - s.option("beta2")) - 1;
    const V rest = s.rest("beta2"), length = most - s.t * 2 * (1 - rest) / rest, is_adaptive = length > 5;
    const V safe = where(is_adaptive, length, 6), plain = s.option("lr") / s.rest("beta1");
    const V adaptive = plain * sqrt((safe - 4) * (safe - 2) * most / (safe * ((most - 4) * (most - 2)))) * sqrt(rest);
    s.average_moments(s.decayed());
    const V step = s.b[0] * s.here(where(is_adaptive, adaptive, plain));
    s.p = s.p - where(is_adaptive, step / (sqrt(s.b[1]) + s.option("eps")), step);
    return s.results();
}

OnnxValues lion_of(const OnnxCall& x) {
    Step s(x);
    const double lr = s.option("lr");
    const V c = s.b[0] + (s.g - s.b[0]) * (1 - s.option("beta1"));
    s.p = s.p * (1 - lr * s.option("weight_decay")) - where(c > 0, lr, where(c < 0, -lr, c));
    s.b[0] = s.b[0] + (s.g - s.b[0]) * (1 - s.option("beta2"));
    return s.results();
}

OnnxValues rprop_of(const OnnxCall& x) {
    Step s(x);
    const double least = s.option("step_size_min"), most = s.option("step_size_max");
    const V turn = s.g * s.b[0];
    const V factor = where(turn > 0, s.option("eta_plus"), where(turn < 0, s.option("eta_minus"), where(turn == 0, 1, turn)));
    const V free = s.b[1] * factor, above = where(free < least, least, free);
    s.b[1] = where(above > most, most, above);
    s.b[0] = where(turn < 0, 0, s.g);
    s.p = s.p - where(s.b[0] > 0, s.b[1], where(s.b[0] < 0, -s.b[1], s.b[0]));
    return s.results();
}

OnnxValues asgd_of(const OnnxCall& x) {
    Step s(x);
    const double lr = s.option("lr"), lambd = s.option("lambd");
    const V is_first = s.is_first(), eta = where(is_first, lr, s.number);
    s.number = lr / pow(s.t * (lambd * lr) + 1, s.option("alpha"));
    const V since = s.t - (1 + s.option("t0")), mu = where(is_first | (since < 1), 1, 1 / where(since < 1, 1, since));
    const V d = s.decayed();
    s.p = s.p * s.here(1 - eta * lambd) - d * s.here(eta);
    s.b[0] = where(mu == 1, s.p, s.b[0] + (s.p - s.b[0]) * s.here(mu));
    return s.results();
}

}  // namespace

TAPIR_ONNX(sgd, sgd_of(x));
TAPIR_ONNX(adagrad, adagrad_of(x));
TAPIR_ONNX(adagrad_da, adagrad_da_of(x));
TAPIR_ONNX(adadelta, adadelta_of(x));
TAPIR_ONNX(rmsprop, rmsprop_of(x));
TAPIR_ONNX(adam, adam_of(x, false));
TAPIR_ONNX(adamw, adam_of(x, true));
TAPIR_ONNX(adamax, adamax_of(x));
TAPIR_ONNX(nadam, nadam_of(x));
TAPIR_ONNX(radam, radam_of(x));
TAPIR_ONNX(lion, lion_of(x));
TAPIR_ONNX(rprop, rprop_of(x));
TAPIR_ONNX(asgd, asgd_of(x));

}  // namespace tapir
