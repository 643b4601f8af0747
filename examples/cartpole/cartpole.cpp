// A pole is balanced on a cart that can be pushed left or right (Barto, Sutton and Anderson 1983), for 500 steps at most. Two ways
// to learn it: a policy gradient, by the surrogate whose gradient it is (Williams 1992), and Q-learning with a replay memory and
// a target network (Mnih et al. 2015).
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <random>

#include "../common/show.h"

using namespace tapir;

namespace {

// Position and speed of the cart, angle of the pole and its speed; Euler steps of 0.02 s.
class CartPole {
 public:
    using State = std::array<float, 4>;
    static constexpr int kMostSteps = 500;

    explicit CartPole(std::uint64_t seed) : random_(seed) {}
    State reset() {
        std::uniform_real_distribution<float> small(-0.05f, 0.05f);
        for (float& s : state_) s = small(random_);
        steps_ = 0;
        return state_;
    }
    // Returns whether the episode goes on; each step that does not drop the pole earns 1.
    bool step(int action, State& next) {
        auto& [x, v, angle, w] = state_;
        const float force = action == 1 ? 10.0f : -10.0f, sin = std::sin(angle), cos = std::cos(angle);
        const float push = (force + 0.05f * w * w * sin) / 1.1f;
        const float turn = (9.8f * sin - cos * push) / (0.5f * (4.0f / 3 - 0.1f * cos * cos / 1.1f));
        const float acceleration = push - 0.05f * turn * cos / 1.1f;
        x += 0.02f * v, v += 0.02f * acceleration, angle += 0.02f * w, w += 0.02f * turn;
        ++steps_;
        next = state_;
        fell_ = std::abs(x) > 2.4f || std::abs(angle) > 12 * 3.14159265f / 180;
        return !fell_ && steps_ < kMostSteps;
    }
    bool fell() const { return fell_; }

 private:
    std::mt19937_64 random_;
    State state_{};
    int steps_ = 0;
    bool fell_ = false;
};

Tensor observed(const CartPole::State& s) { return tensor(std::vector<float>(s.begin(), s.end())); }

struct Options {
    std::string method = "policy", chart = "cartpole.svg";
    int episodes = 2000;
    double goal = 475;
    std::uint64_t seed = 1;
};

// The mean return of the last 100 episodes, as it goes.
class Returns {
 public:
    Returns(const Options& o) : progress_(o.episodes), goal_(o.goal) {}
    // Whether the goal is reached.
    bool add(double value) {
        last_.push_back(value);
        if (last_.size() > 100) last_.pop_front();
        double sum = 0;
        for (const double r : last_) sum += r;
        mean_ = sum / static_cast<double>(last_.size());
        each_.add(static_cast<double>(each_.x.size() + 1), value);
        means_.add(static_cast<double>(each_.x.size()), mean_);
        progress_.update(static_cast<std::int64_t>(each_.x.size()), fmt::format("mean return of the last 100: {:.1f}", mean_));
        return last_.size() == 100 && mean_ >= goal_;
    }
    void finish(const Options& o) {
        progress_.print(fmt::format("{} episodes, mean return of the last 100: {:.1f}", each_.x.size(), mean_));
        show::write_chart(o.chart, {each_, means_}, {.title = "CartPole, " + o.method, .x_label = "episode", .y_label = "return"});
        fmt::print("result {:.1f}\n", mean_);
    }

 private:
    show::Progress progress_;
    double goal_, mean_ = 0;
    std::deque<double> last_;
    show::Curve each_{"return", {}, {}}, means_{"mean of 100", {}, {}};
};

void learn_policy(const Options& o) {
    CartPole world(o.seed);
    nn::Sequential policy(nn::Linear(4, 64), nn::Tanh(), nn::Linear(64, 2)), critic(nn::Linear(4, 64), nn::Tanh(), nn::Linear(64, 1));
    optim::Adam adam(policy.parameters(), {.lr = 5e-3}), critic_adam(critic.parameters(), {.lr = 1e-2});
    Returns returns(o);
    std::vector<Tensor> states, actions;
    std::vector<double> to_go;
    for (int episode = 1; episode <= o.episodes; ++episode) {
        std::vector<double> rewards;
        CartPole::State state = world.reset(), next;
        for (bool goes_on = true; goes_on; state = next) {
            states.push_back(observed(state));
            actions.push_back(multinomial(softmax(policy(states.back()), 0), 1)[0]);
            goes_on = world.step(actions.back().item<int>(), next);
            rewards.push_back(world.fell() ? 0 : 1);
        }
        std::vector<double> sums(rewards.size());
        double sum = world.fell() ? 0 : critic(observed(next)).item();  // cut off at 500: what would have come
        for (std::size_t t = rewards.size(); t-- > 0;) sums[t] = sum = rewards[t] + 0.99 * sum;
        to_go.insert(to_go.end(), sums.begin(), sums.end());
        if (returns.add(static_cast<double>(rewards.size()))) break;
        if (episode % 4 != 0) continue;

        // A step on four episodes.
        const Tensor s = stack(states), a = stack(actions), r = tensor(to_go).to(float32);
        Tape tape;
        const Tensor value = critic(s).squeeze(1), gain = r - stop_gradient(value);
        const Tensor advantage = (gain - gain.mean()) / (tapir::std(gain) + 1e-6);
        const Tensor log_p = gather(log_softmax(policy(s), 1), 1, a.unsqueeze(1)).squeeze(1);
        const Tensor ratio = exp(log_p - stop_gradient(log_p));  // 1, with the gradient of log p
        tape.backward(mse_loss(value, r) * 1e-3 - mean(ratio * advantage));
        adam.step();
        critic_adam.step();
        adam.zero_grad();
        critic_adam.zero_grad();
        states.clear(), actions.clear(), to_go.clear();
    }
    returns.finish(o);
}

struct Transition {
    CartPole::State state, next;
    int action;
    float reward, goes_on;
};

void learn_q(const Options& o) {
    CartPole world(o.seed);
    std::mt19937_64 random(o.seed);
    nn::Sequential q(nn::Linear(4, 128), relu, nn::Linear(128, 128), relu, nn::Linear(128, 2));
    nn::Sequential target(nn::Linear(4, 128), relu, nn::Linear(128, 128), relu, nn::Linear(128, 2));
    target.load_state_dict(q.state_dict());
    const std::vector<Tensor> learned = q.parameters();
    std::vector<Tensor> followed = target.parameters();
    target.requires_grad_(false);
    optim::Adam adam(learned, {.lr = 2e-4});
    Returns returns(o);
    std::vector<Transition> memory;
    std::size_t oldest = 0;
    std::int64_t steps = 0;
    for (int episode = 1; episode <= o.episodes; ++episode) {
        CartPole::State state = world.reset(), next;
        int length = 0;
        for (bool goes_on = true; goes_on; state = next, ++steps) {
            const double curious = std::max(0.01, 1 - static_cast<double>(steps) / 10000);
            const bool tries = std::uniform_real_distribution<>()(random) < curious;
            const int action = tries ? static_cast<int>(random() % 2) : argmax(q(observed(state)), 0).item<int>();
            goes_on = world.step(action, next);
            ++length;
            const Transition seen{state, next, action, world.fell() ? 0.0f : 1.0f, world.fell() ? 0.0f : 1.0f};
            if (memory.size() < 50000) {
                memory.push_back(seen);
            } else {
                memory[oldest++ % memory.size()] = seen;
            }
            if (memory.size() < 1000) continue;
            std::vector<float> before, after, reward, on;
            std::vector<std::int64_t> action_of;
            for (int i = 0; i < 128; ++i) {
                const Transition& t = memory[random() % memory.size()];
                before.insert(before.end(), t.state.begin(), t.state.end());
                after.insert(after.end(), t.next.begin(), t.next.end());
                reward.push_back(t.reward), on.push_back(t.goes_on), action_of.push_back(t.action);
            }
            Tape tape;
            // The net chooses the next action, the target net says what it is worth (van Hasselt, Guez and Silver 2016).
            const Tensor next_states = tensor(after).reshape({128, 4}), chosen = one_hot(argmax(q(next_states), 1), 2);
            const Tensor best = stop_gradient(sum(target(next_states) * chosen, 1));
            const Tensor wanted = tensor(reward) + 0.99 * tensor(on) * best;
            const Tensor said = sum(q(tensor(before).reshape({128, 4})) * one_hot(tensor(action_of), 2), 1);
            tape.backward(huber_loss(said, wanted));
            optim::clip_grad_norm_(q.parameters(), 10);
            adam.step();
            adam.zero_grad();
            const NoGradScope off;  // the target follows slowly
            for (std::size_t i = 0; i < learned.size(); ++i) followed[i].mul_(0.995).add_(0.005 * learned[i]);
        }
        if (returns.add(length)) break;
    }
    returns.finish(o);
}

void run(int argc, char** argv) {
    Options o;
    CLI::App app("Balancing a pole");
    app.add_option("--method", o.method, "policy or dqn")->capture_default_str()->check(CLI::IsMember({"policy", "dqn"}));
    app.add_option("--episodes", o.episodes, "at most")->capture_default_str();
    app.add_option("--goal", o.goal, "mean return of 100 episodes at which it stops")->capture_default_str();
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    o.method == "policy" ? learn_policy(o) : learn_q(o);
}

}  // namespace

int main(int argc, char** argv) { return show::run("cartpole", argc, argv, run); }
