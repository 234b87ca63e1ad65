// LibTorch's only user in core. Its exceptions end here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <dlfcn.h>

#include "core/base/status_macros.h"
#include "core/fit/mlp_trainer.h"

namespace kvbridge::fit {
namespace {

using at::Tensor;

constexpr int64_t kEvaluationRows = 4096;

Tensor Floats(const std::vector<float>& values, at::IntArrayRef shape, const at::Device& device) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat).clone().to(device);
}

std::vector<uint16_t> Bf16(const Tensor& tensor) {
  const Tensor rounded = tensor.detach().to(at::kCPU).to(at::kBFloat16).contiguous();
  std::vector<uint16_t> bits(static_cast<size_t>(rounded.numel()));
  std::memcpy(bits.data(), rounded.data_ptr(), bits.size() * sizeof(uint16_t));
  return bits;
}

// Adam, arXiv 1412.6980, with its usual constants.
class Adam {
 public:
  explicit Adam(const std::vector<Tensor>& parameters) : parameters_(parameters) {
    for (const Tensor& p : parameters_) {
      first_.push_back(at::zeros_like(p));
      second_.push_back(at::zeros_like(p));
    }
  }

  void Step(double rate) {
    const at::NoGradGuard no_grad;
    ++steps_;
    const double unbias = std::sqrt(1 - std::pow(0.999, steps_)) / (1 - std::pow(0.9, steps_));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Tensor& p = parameters_[i];
      Tensor gradient = p.mutable_grad();
      first_[i].mul_(0.9).add_(gradient, 0.1);
      second_[i].mul_(0.999).addcmul_(gradient, gradient, 0.001);
      p.addcdiv_(first_[i], second_[i].sqrt().add_(1e-8), -rate * unbias);
      gradient.zero_();
    }
  }

 private:
  std::vector<Tensor> parameters_;
  std::vector<Tensor> first_;
  std::vector<Tensor> second_;
  int64_t steps_ = 0;
};

class Trainer {
 public:
  Trainer(const NetworkProblem& problem, const TrainOptions& options)
      : problem_(problem), options_(options), device_(options.device), random_(options.seed) {}

  absl::StatusOr<TrainedNetwork> Run() {
    KVB_RETURN_IF_ERROR(Prepare());
    TrainedNetwork result;
    result.linear_error = HeldOutError();
    best_error_ = result.linear_error;
    Keep();
    double rate = options_.learning_rate;
    Adam adam(parameters_);
    int32_t idle = 0;
    while (result.epochs < options_.max_epochs && idle < options_.patience) {
      KVB_RETURN_IF_ERROR(Epoch(adam, rate));
      ++result.epochs;
      const double error = HeldOutError();
      if (!std::isfinite(error)) return NotFinite("held-out error");
      idle = error < best_error_ ? 0 : idle + 1;
      if (idle > 0) {
        rate /= 2;
      } else {
        best_error_ = error;
        Keep();
      }
      if (options_.on_epoch) options_.on_epoch(result.epochs, error);
    }
    Export(result);
    return result;
  }

 private:
  absl::Status NotFinite(absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(
        "training: expected a finite ", what, ", got NaN or infinity after step ", step_,
        "; a smaller learning rate than ", options_.learning_rate, " may help"));
  }

  // Puts the rows where they are used, and draws the first weights.
  absl::Status Prepare() {
    const at::NoGradGuard no_grad;
    const int64_t rows = problem_.fit_rows + problem_.held_out_rows;
    x_ = at::from_blob(const_cast<uint16_t*>(problem_.features.data()), {rows, problem_.inputs},
                       at::kBFloat16)
             .to(device_);
    y_ = at::from_blob(const_cast<float*>(problem_.targets.data()), {rows, problem_.outputs},
                       at::kFloat)
             .to(device_);
    Standardise();
    const Tensor fitted = y_.narrow(0, 0, problem_.fit_rows);
    const Tensor mean = fitted.mean(0);
    const Tensor held_out = y_.narrow(0, problem_.fit_rows, problem_.held_out_rows);
    fit_variance_ = Sum((fitted - mean).square()) / static_cast<double>(problem_.fit_rows);
    held_out_ss_ = Sum((held_out - held_out.mean(0)).square());
    if (!problem_.linear.empty()) {
      linear_ = Floats(problem_.linear, {problem_.inputs, problem_.outputs}, device_);
    }
    bias_ = problem_.bias.empty() ? mean : Floats(problem_.bias, {problem_.outputs}, device_);
    if (!problem_.scale.empty()) scale_ = Floats(problem_.scale, {problem_.outputs}, device_);
    if (!problem_.inverse_gamma.empty()) {
      inverse_gamma_ = Floats(problem_.inverse_gamma,
                              {static_cast<int64_t>(problem_.inverse_gamma.size())}, device_);
      counted_ = Sum(inverse_gamma_.ne(0));
    }
    DrawWeights();
    return absl::OkStatus();
  }

  // Mean and deviation of each feature, chunk by chunk: the features stay BF16 in memory.
  void Standardise() {
    Tensor sum = at::zeros({problem_.inputs}, x_.options().dtype(at::kDouble));
    Tensor squares = at::zeros_like(sum);
    for (int64_t row = 0; row < problem_.fit_rows; row += kEvaluationRows) {
      const Tensor chunk =
          x_.narrow(0, row, std::min(kEvaluationRows, problem_.fit_rows - row)).to(at::kDouble);
      sum += chunk.sum(0);
      squares += chunk.square().sum(0);
    }
    const auto rows = static_cast<double>(problem_.fit_rows);
    center_ = (sum / rows).to(at::kFloat);
    // A feature that never varies says nothing, and must not be magnified.
    const Tensor deviation = (squares / rows - (sum / rows).square()).clamp_min(0).sqrt();
    spread_ = deviation.clamp_min(1e-6).reciprocal().mul(deviation.gt(1e-6)).to(at::kFloat);
  }

  // He's deviation for hidden layers, zero for what comes out: training starts at the linear part.
  void DrawWeights() {
    int64_t inputs = problem_.inputs;
    for (const int32_t width : options_.hidden) {
      Tensor weight = at::empty({inputs, width}, at::kFloat);
      std::normal_distribution<float> normal(0, std::sqrt(2.0f / static_cast<float>(inputs)));
      float* values = weight.data_ptr<float>();
      for (int64_t i = 0; i < weight.numel(); ++i) values[i] = normal(random_);
      parameters_.push_back(weight.to(device_));
      parameters_.push_back(at::zeros({width}, parameters_.back().options()));
      inputs = width;
    }
    parameters_.push_back(at::zeros({inputs, problem_.outputs}, parameters_.back().options()));
    parameters_.push_back(at::zeros({problem_.outputs}, parameters_.back().options()));
    for (Tensor& parameter : parameters_) parameter.set_requires_grad(true);
    // What comes out is in units of what the targets deviate by.
    unit_ = std::sqrt(std::max(fit_variance_ / static_cast<double>(problem_.outputs), 1e-30));
  }

  Tensor Predict(const Tensor& rows) const {
    const Tensor x = rows.to(at::kFloat);
    Tensor h = (x - center_) * spread_;
    const size_t out = 2 * options_.hidden.size();
    for (size_t i = 0; i < out; i += 2) {
      h = at::relu(Product(h, parameters_[i]) + parameters_[i + 1]);
    }
    Tensor y = (Product(h, parameters_[out]) + parameters_[out + 1]) * unit_ + bias_;
    if (linear_.defined()) y = y + at::mm(x, linear_);
    return Normalise(y);
  }

  Tensor Product(const Tensor& a, const Tensor& b) const {
    if (!options_.bf16) return at::mm(a, b);
    return at::mm(a.to(at::kBFloat16), b.to(at::kBFloat16)).to(at::kFloat);
  }

  Tensor Normalise(Tensor y) const {
    if (scale_.defined()) y = y * scale_;
    if (!inverse_gamma_.defined()) return y;
    const Tensor heads = y.view({y.size(0), -1, inverse_gamma_.size(0)});
    const Tensor squares = (heads * inverse_gamma_).square().sum(-1, /*keepdim=*/true);
    return (heads * at::rsqrt(squares / counted_ + problem_.eps)).view_as(y);
  }

  static double Sum(const Tensor& tensor) { return tensor.sum(at::kDouble).item<double>(); }

  absl::Status Epoch(Adam& adam, double rate) {
    std::vector<int64_t> order(static_cast<size_t>(problem_.fit_rows));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    const Tensor rows =
        at::from_blob(order.data(), {problem_.fit_rows}, at::kLong).clone().to(device_);
    for (int64_t begin = 0; begin < problem_.fit_rows; begin += options_.batch) {
      if (options_.stop.stop_requested()) return absl::CancelledError("training: interrupted");
      const int64_t count = std::min(options_.batch, problem_.fit_rows - begin);
      const Tensor batch = rows.narrow(0, begin, count);
      const Tensor loss =
          (Predict(x_.index_select(0, batch)) - y_.index_select(0, batch)).square().sum() /
          (static_cast<double>(count) * std::max(fit_variance_, 1e-30));
      ++step_;
      if (!std::isfinite(loss.item<float>())) return NotFinite("loss");
      loss.backward();
      adam.Step(rate);
    }
    return absl::OkStatus();
  }

  // Residual over variance.
  double HeldOutError() const {
    const at::NoGradGuard no_grad;
    double residual = 0;
    for (int64_t row = 0; row < problem_.held_out_rows; row += kEvaluationRows) {
      const int64_t count = std::min(kEvaluationRows, problem_.held_out_rows - row);
      const int64_t at = problem_.fit_rows + row;
      residual += Sum((Predict(x_.narrow(0, at, count)) - y_.narrow(0, at, count)).square());
    }
    return residual / std::max(held_out_ss_, 1e-30);
  }

  void Keep() {
    const at::NoGradGuard no_grad;
    best_.clear();
    for (const Tensor& parameter : parameters_) best_.push_back(parameter.detach().clone());
  }

  // Standardisation and the unit go into the weights, which are then rounded and judged once more.
  void Export(TrainedNetwork& result) {
    const at::NoGradGuard no_grad;
    const size_t out = 2 * options_.hidden.size();
    best_[1] = best_[1] - at::mm((center_ * spread_).unsqueeze(0), best_[0]).squeeze(0);
    best_[0] = best_[0] * spread_.unsqueeze(1);
    best_[out] = best_[out] * unit_;
    const Tensor bias = bias_ + best_[out + 1] * unit_;
    for (size_t i = 0; i < out; i += 2)
      result.hidden.push_back({Bf16(best_[i]), Bf16(best_[i + 1])});
    result.out = Bf16(best_[out]);
    result.bias = Bf16(bias);
    const auto rounded = [](const Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
    center_.zero_();
    spread_.fill_(1);
    unit_ = 1;
    for (size_t i = 0; i <= out; ++i) parameters_[i] = rounded(best_[i]);
    parameters_[out + 1] = at::zeros_like(bias);
    bias_ = rounded(bias);
    result.error = HeldOutError();
  }

  const NetworkProblem& problem_;
  const TrainOptions& options_;
  const at::Device device_;
  std::mt19937_64 random_;
  Tensor x_, y_;            // [rows, inputs] BF16, [rows, outputs]
  Tensor center_, spread_;  // [inputs]: features are standardised by them
  Tensor linear_, bias_, scale_, inverse_gamma_;
  double counted_ = 1;       // dimensions that k_norm does not multiply by zero
  double fit_variance_ = 0;  // of a row
  double held_out_ss_ = 0;
  double unit_ = 1;
  std::vector<Tensor> parameters_;  // weight and bias of each hidden layer, then of the output
  std::vector<Tensor> best_;
  double best_error_ = 0;
  int64_t step_ = 0;
};

absl::Status CheckOptions(const NetworkProblem& problem, const TrainOptions& options) {
  const auto bad = [](absl::string_view field, absl::string_view expected, auto got) {
    return absl::InvalidArgumentError(
        absl::StrCat("training: ", field, ": expected ", expected, ", got ", got));
  };
  if (options.hidden.empty()) return bad("hidden", "at least one width", 0);
  if (options.batch < 1) return bad("batch", "at least 1 row", options.batch);
  if (options.max_epochs < 0) return bad("max_epochs", "at least 0", options.max_epochs);
  if (!(options.learning_rate > 0) || !std::isfinite(options.learning_rate)) {
    return bad("learning_rate", "a finite number above 0", options.learning_rate);
  }
  if (problem.fit_rows < 1) return bad("rows", "at least one to fit on", problem.fit_rows);
  if (problem.held_out_rows < 1) return bad("held-out rows", "at least one", 0);
  if (options.device == "cpu") return absl::OkStatus();
  if (options.device != "cuda") return bad("device", "cpu or cuda", options.device);
  // Its kernels register themselves; nothing else of it is used by name.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr || !at::hasCUDA()) {
    return absl::FailedPreconditionError(
        "training: device: this LibTorch finds no CUDA on this machine");
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainedNetwork> TrainWithTorch(const NetworkProblem& problem,
                                              const TrainOptions& options) {
  KVB_RETURN_IF_ERROR(CheckOptions(problem, options));
  try {
    if (options.threads > 0) at::set_num_threads(options.threads);
    return Trainer(problem, options).Run();
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat("training: LibTorch: ", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("training: LibTorch found no memory for the rows");
  }
}

}  // namespace

// What mlp_trainer.cc looks up.
extern "C" void KvbridgeTrainNetwork(const NetworkProblem& problem, const TrainOptions& options,
                                     absl::StatusOr<TrainedNetwork>* trained) {
  *trained = TrainWithTorch(problem, options);
}

}  // namespace kvbridge::fit
