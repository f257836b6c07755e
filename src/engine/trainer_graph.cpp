// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: captured once, replayed with what is new in each.
#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "src/engine/random/draw_watch.h"
#include "src/engine/trainer_impl.h"

namespace nanhunt::engine {
namespace {

// A list of indices is at most three times as long as what it is made of, and there are a few of each.
constexpr std::size_t kFedBytes = std::size_t{1} << 20, kFedIndices = 16;
// So many steps in a row that are not like the captured one, and another one is captured.
constexpr std::uint64_t kStrangers = 16;

Tensor room_like(const Tensor& tensor) {
  return tensor.defined() ? Tensor::empty(tensor.sizes(), tensor.dtype(), tensor.device()) : Tensor();
}

void put(Tensor& to, const Tensor& from) {
  if (from.defined()) to.copy_from(from);
}

std::uint32_t version_of(const Tensor& tensor) { return tensor.defined() ? tensor.version() : 0; }

// Contents can be put there, and lie there as they do here; nobody asks for a gradient of them.
bool fits(const Tensor& there, const Tensor& here) {
  if (there.defined() != here.defined()) return false;
  return !here.defined() || (here.sizes() == there.sizes() && here.dtype() == there.dtype() &&
                             here.device() == there.device() && here.is_contiguous() && !here.requires_grad());
}

// Versions as they are, and how far they have come since.
class Versions {
 public:
  void add(const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& entry : tensors) before_.emplace_back(entry.tensor, entry.tensor.version());
  }
  std::vector<StepGraph::Written> written() const {
    std::vector<StepGraph::Written> out;
    for (const auto& [tensor, version] : before_) {
      if (tensor.version() != version) out.push_back({tensor, tensor.version() - version});
    }
    return out;
  }

 private:
  std::vector<std::pair<Tensor, std::uint32_t>> before_;
};

void grow(const std::vector<StepGraph::Written>& written) {
  for (const auto& [tensor, times] : written) {
    for (std::uint32_t i = 0; i < times; ++i) tensor.storage()->bump_version();
  }
}

}  // namespace

void StepGraph::drop() {
  update.reset();
  work.reset();
  batches.clear();
  losses.clear();
  gradients.clear();
  strangers = 0;
}

// Of model and optimizer, as they are.
std::string Trainer::Impl::why_no_graph() const {
  const std::vector<NamedTensor>& parameters = optimizer->parameters();
  if (parameters.empty() || parameters[0].tensor.device().is_cpu()) return "the CPU has no graphs";
  std::set<const TensorImpl*> optimized;
  for (const NamedTensor& entry : parameters) optimized.insert(entry.tensor.impl().get());
  for (const NamedTensor& entry : model->named_parameters()) {
    if (entry.tensor.device() != parameters[0].tensor.device()) return "the model is on several devices";
    if (entry.tensor.requires_grad() && optimized.count(entry.tensor.impl().get()) == 0) {
      return "the gradient of " + entry.path + ", which the optimizer does not have, adds up from step to step";
    }
  }
  return {};
}

// What a graph has been captured under, other than what it is fed. Storages by their generation, which none has again.
GraphSettings Trainer::Impl::settings_now() const {
  GraphSettings out;
  out.emplace_back("a setting of a module (its mode, a mask) is another", model->settings());
  const auto add = [](std::vector<std::uint64_t>& to, const Tensor& tensor) {
    to.push_back(tensor.defined() ? tensor.storage()->generation() : 0);
    to.push_back(tensor.defined() && tensor.requires_grad() ? 1 : 0);
  };
  std::vector<std::uint64_t> tensors, streams, scale;
  for (const auto& list : {model->named_parameters(), model->named_buffers(), optimizer->parameters()}) {
    for (const NamedTensor& entry : list) add(tensors, entry.tensor);
  }
  for (const RandomStream* stream : model->random_streams()) {
    streams.push_back(stream->seed());
    streams.push_back(stream->stream());
  }
  if (scaler) add(scale, scaler->scale_tensor());
  out.emplace_back("a parameter or buffer lies elsewhere or asks for another gradient", std::move(tensors));
  out.emplace_back("a random stream has another seed", std::move(streams));
  out.emplace_back("the scaler is another", std::move(scale));
  return out;
}

// What the step at hand runs op by op for, before its batches are looked at; empty: nothing.
std::string Trainer::Impl::why_not_this_step() {
  StepGraph& graph = *graphs;
  if (!graph.work) {
    if (const std::string why = why_no_graph(); !why.empty()) return graph.use.why_not = why;
  }
  if (ops_observed()) return "an observer wants ops";  // and may be given them by other kernels
  if (!std::exchange(graph.warm, true)) return "it is the first one, so that a capture meets nothing new";
  if (keep_gradients) return "the gradients of a skipped step are kept";
  // A region around the step has casts that it made; without gradients, or before there is a loss scale, a step is none
  // that others are like.
  if (autocast_enabled()) return "an autocast region is around it";
  if (!grad_enabled()) return "gradients are off around it";
  if (scaler && scaler->is_enabled() && !scaler->scale_tensor().defined()) return "there is no loss scale yet";
  return !graph.work && graph.patience.waits() ? graph.use.why_not : "";
}

std::string Trainer::Impl::why_not_as_captured() const {
  const GraphSettings now = settings_now();
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != graphs->settings[i]) return std::string(now[i].first) + " than in the capture";
  }
  return {};
}

bool Trainer::Impl::feed_batches(std::uint32_t step, bool is_new) {
  std::vector<Batch>& rooms = graphs->batches;
  std::vector<std::uint32_t> versions;  // as copied
  for (std::uint32_t m = 0; m < options.micro_batches; ++m) {
    fetched.push_back(fetch_batch(step, m));
    // A source may fill the same memory for each micro-batch: then what it held is where it was copied to.
    for (std::uint32_t k = 0; k < m; ++k) {
      if (version_of(fetched[k].inputs) != versions[2 * k]) fetched[k].inputs = rooms[k].inputs;
      if (version_of(fetched[k].targets) != versions[2 * k + 1]) fetched[k].targets = rooms[k].targets;
      versions[2 * k] = version_of(fetched[k].inputs);
      versions[2 * k + 1] = version_of(fetched[k].targets);
    }
    const Batch& batch = fetched.back();
    if (is_new) rooms.push_back({room_like(batch.inputs), room_like(batch.targets), batch.sample_ids});
    if (!fits(rooms[m].inputs, batch.inputs) || !fits(rooms[m].targets, batch.targets)) return false;
    put(rooms[m].inputs, batch.inputs);
    put(rooms[m].targets, batch.targets);
    versions.push_back(version_of(batch.inputs));
    versions.push_back(version_of(batch.targets));
  }
  return true;
}

bool Trainer::Impl::capture_step() {
  StepGraph& graph = *graphs;
  graph.settings = settings_now();
  const std::vector<RandomStream*> streams = model->random_streams();
  std::vector<std::uint64_t> positions;
  for (const RandomStream* stream : streams) positions.push_back(stream->position());
  Versions versions;
  versions.add(model->named_parameters());
  versions.add(model->named_buffers());
  optimizer->zero_grad();
  const Device device = optimizer->parameters()[0].tensor.device();
  const auto work = [&] {
    bool elsewhere = false;
    const ScopedDrawWatch draws(streams, elsewhere, /*of_device=*/true);
    CapturedWork::current()->only_leaves(optimizer->parameters());
    for (const Batch& batch : graph.batches) {
      const Tensor value = compute_loss(batch);
      if (value.device() != device) throw std::runtime_error("the loss is not where the model is");
      run_backward(value);
      graph.losses.push_back(value);
    }
  };
  std::size_t room = kFedBytes;
  for (const Batch& batch : fetched) {
    for (const Tensor* tensor : {&batch.inputs, &batch.targets}) {
      if (tensor->defined() && tensor->dtype() == DType::kI64) room += kFedIndices * tensor->storage()->bytes();
    }
  }
  graph.work = CapturedWork::capture(device, room, work, graph.use.why_not);
  if (graph.work) {
    for (const NamedTensor& entry : optimizer->parameters()) graph.gradients.push_back(entry.tensor.grad());
    graph.written = versions.written();
    return true;
  }
  if (graph.use.why_not.empty()) graph.use.why_not = "the device made no graph";
  graph.patience.lose();
  graph.losses.clear();
  graph.batches.clear();
  optimizer->zero_grad();
  for (std::size_t i = 0; i < streams.size(); ++i) streams[i]->seek(positions[i]);
  return false;
}

bool Trainer::Impl::run_graph_to_door(StepResult& result) {
  if (!graphs) return false;
  StepGraph& graph = *graphs;
  graph.ran = false;
  const bool is_new = graph.work == nullptr;
  std::string why = why_not_this_step();
  bool is_strange = false;
  if (why.empty() && !is_new) {
    why = why_not_as_captured();
    is_strange = !why.empty();
  }
  if (why.empty()) {
    start_marked = false;  // who comes later has not heard what a step starts from
    if (!feed_batches(result.step, is_new)) {
      if (is_new) graph.batches.clear();
      is_strange = !is_new;
      why = "a batch has gaps, or another shape or format than in the capture, or a gradient is asked of it";
    } else if (is_new && !capture_step()) {
      why = graph.use.why_not;
    }
  }
  if (!why.empty()) {
    ++graph.use.op_by_op[why];
    if (is_strange && ++graph.strangers == kStrangers) graph.drop();
    return false;
  }
  graph.strangers = 0;
  optimizer->zero_grad();
  {
    std::optional<ScopedDrawWatch> draws;
    if (keeps_start) draws.emplace(start.streams, start.drew_elsewhere);
    graph.work->replay();
  }
  if (!is_new) {
    grow(graph.written);
    for (const auto* list : {&graph.losses, &graph.gradients}) {
      for (const Tensor& tensor : *list) {
        if (tensor.defined()) tensor.storage()->bump_version();
      }
    }
  }
  graph.ran = true;
  ++graph.use.steps;
  for (std::uint32_t m = 0; m < options.micro_batches; ++m) {
    tell_batch(fetched[m], m);
    const ScopedModule module("<loss>");
    const ScopedPhase phase(Phase::kLoss);
    notify_mark(MarkKind::kLoss, "loss", graph.losses[m]);
    if (scaler) scaler->tell_scaled();
  }
  // Not before the losses were told: then there are none, unless a step keeps those of the last one.
  const std::vector<NamedTensor>& parameters = optimizer->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i].tensor;
    parameter.set_grad(graph.gradients[i]);
  }
  unread_losses = graph.losses;
  if (scaler) result.scale = scaler->get_scale();
  prepare_gradients();
  return true;
}

bool Trainer::Impl::capture_update() {
  StepGraph& graph = *graphs;
  graph.use.why_no_update = optimizer->why_no_graph();
  if (!graph.use.why_no_update.empty()) return false;
  Versions versions;
  versions.add(optimizer->parameters());
  versions.add(optimizer->named_state());
  const std::vector<std::int64_t> counts = optimizer->step_counts();
  const Device device = optimizer->parameters()[0].tensor.device();
  graph.update = CapturedWork::capture(device, kFedBytes + 32 * counts.size(), [this] { optimizer->step(); },
                                       graph.use.why_no_update);
  if (!graph.update) {
    if (graph.use.why_no_update.empty()) graph.use.why_no_update = "the device made no graph";
    graph.update_patience.lose();
    optimizer->set_step_counts(counts);
    return false;
  }
  graph.updated = versions.written();
  graph.counted = optimizer->step_counts();
  for (std::size_t i = 0; i < counts.size(); ++i) graph.counted[i] -= counts[i];
  return true;
}

// True: the optimizer's work is on its way.
bool Trainer::Impl::update_by_graph() {
  if (!graphs || replaying()) return false;
  StepGraph& graph = *graphs;
  const std::vector<NamedTensor>& parameters = optimizer->parameters();
  const auto holds_its_gradients = [&] {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].tensor.grad().impl() != graph.gradients[i].impl()) return false;
    }
    return true;
  };
  if (!graph.update_warm || !graph.ran || ops_observed() || !holds_its_gradients()) {
    graph.update_warm = graph.update_warm || !ops_observed();
    return false;
  }
  if (!graph.update) {
    if (graph.update_patience.waits() || !capture_update()) return false;
  } else {
    std::vector<std::int64_t> counts = optimizer->step_counts();
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += graph.counted[i];
    optimizer->set_step_counts(counts);
    grow(graph.updated);
  }
  graph.update->replay();
  ++graph.use.updates;
  return true;
}

void Trainer::Impl::follow_graphs_wanted() {
  if (!wants_graphs) {
    graphs.reset();
  } else if (!graphs) {
    graphs = std::make_unique<StepGraph>();
  }
}

void Trainer::use_graphs(bool on) {
  impl_->wants_graphs = on;
  if (!impl_->stepping) impl_->follow_graphs_wanted();
}

GraphUse Trainer::graph_use() const {
  if (!impl_->graphs) return {};
  const StepGraph& graph = *impl_->graphs;
  GraphUse use = graph.use;
  for (const auto* work : {&graph.work, &graph.update}) use.bytes += *work ? (*work)->bytes() : 0;
  return use;
}

}  // namespace nanhunt::engine
