// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/models.h"

#include <numeric>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::campaign {
namespace {

using namespace nanhunt::engine;  // NOLINT: everything here is the engine's

constexpr std::int64_t kBatch = 16, kTokens = 12, kDims = 16, kTextBatch = 4;
constexpr std::uint64_t kDropoutStream = std::uint64_t{1} << 40;

// Layers by name, and the list of those that a fault may be planted in.
class Plain : public Sequential {
 public:
  explicit Plain(bool images) : images_(images) {}

 protected:
  Tensor forward(const Tensor& input) override {
    return Sequential::forward(images_ ? reshape(input, {-1, 1, 8, 8}) : input);
  }

 private:
  bool images_;
};

class Builder {
 public:
  Builder(const Settings& s, Network& net) : settings_(s), net_(net), random_(s.seed, /*stream=*/0) {}

  std::unique_ptr<Module> linear(std::int64_t in, std::int64_t out) {
    return keep(std::make_unique<Linear>(in, out, random_, settings_.dtype()));
  }
  std::unique_ptr<Module> conv(std::int64_t in, std::int64_t out, std::int64_t kernel = 3) {
    return keep(std::make_unique<Conv2d>(in, out, Conv2dOptions{.kernel = kernel, .with_bias = kernel == 1}, random_,
                                         settings_.dtype()));
  }
  std::unique_ptr<Module> norm(std::int64_t channels) {
    return std::make_unique<BatchNorm2d>(channels, settings_.dtype());
  }
  std::unique_ptr<Module> dropout() {
    return std::make_unique<Dropout>(settings_.dropout, RandomStream(settings_.seed, kDropoutStream + dropouts_++));
  }
  std::unique_ptr<Module> site() {
    auto out = std::make_unique<Site>();
    net_.sites.push_back(out.get());
    return out;
  }
  std::unique_ptr<Module> level(std::int64_t in, std::int64_t out) {
    auto made = std::make_unique<Sequential>();
    made->append("conv", conv(in, out));
    made->append("bn", norm(out));
    made->append("relu", std::make_unique<Relu>());
    return made;
  }
  RandomStream& random() { return random_; }

 private:
  std::unique_ptr<Module> keep(std::unique_ptr<Module> layer) {
    net_.layers.push_back(layer.get());
    return layer;
  }

  const Settings& settings_;
  Network& net_;
  RandomStream random_;
  std::uint64_t dropouts_ = 0;
};

std::unique_ptr<Module> make_mlp(const Settings& s, Builder& b) {
  auto out = std::make_unique<Plain>(/*images=*/false);
  out->append("fc1", b.linear(64, 32));
  out->append("extra1", b.site());
  out->append("relu1", std::make_unique<Relu>());
  out->append("drop", b.dropout());
  out->append("fc2", b.linear(32, 32));
  out->append("extra2", b.site());
  out->append("relu2", std::make_unique<Relu>());
  out->append("fc3", b.linear(32, s.regression ? 64 : 10));
  return out;
}

std::unique_ptr<Module> make_cnn(const Settings&, Builder& b) {
  constexpr std::int64_t kChannels = 4;
  auto out = std::make_unique<Plain>(/*images=*/true);
  out->append("conv1", b.conv(1, kChannels));
  out->append("bn1", b.norm(kChannels));
  out->append("relu1", std::make_unique<Relu>());
  out->append("extra1", b.site());
  out->append("pool1", std::make_unique<MaxPool2d>(2));
  out->append("conv2", b.conv(kChannels, 2 * kChannels));
  out->append("bn2", b.norm(2 * kChannels));
  out->append("relu2", std::make_unique<Relu>());
  out->append("pool2", std::make_unique<AvgPool2d>(2));
  out->append("flatten", std::make_unique<Flatten>());
  out->append("extra2", b.site());
  out->append("drop", b.dropout());
  out->append("fc", b.linear(8 * kChannels, 10));
  return out;
}

// One level down and up again, with the skip.
class SmallUNet : public Module {
 public:
  explicit SmallUNet(Builder& b)
      : down_(register_module("down", b.level(1, 4))),
        pool_(register_module("pool", std::make_unique<MaxPool2d>(2))),
        bottom_(register_module("bottom", b.level(4, 8))),
        extra1_(register_module("extra1", b.site())),
        up_(register_module("up", std::make_unique<Upsample>(2))),
        merge_(register_module("merge", b.level(12, 4))),
        extra2_(register_module("extra2", b.site())),
        drop_(register_module("drop", b.dropout())),
        out_(register_module("out", b.conv(4, 1, /*kernel=*/1))) {}

 protected:
  Tensor forward(const Tensor& input) override {
    const Tensor top = down_(reshape(input, {-1, 1, 8, 8}));
    const Tensor bottom = extra1_(bottom_(pool_(top)));
    return flatten(out_(drop_(extra2_(merge_(cat({up_(bottom), top}, 1))))), 1);
  }

 private:
  Module &down_, &pool_, &bottom_, &extra1_, &up_, &merge_, &extra2_, &drop_, &out_;
};

class SmallGpt : public Module {
 public:
  SmallGpt(const Settings& s, Builder& b, Network& net)
      : token_(register_module("token", std::make_unique<Embedding>(kTextTokens, kDims, b.random(), s.dtype(), 0.1))),
        position_(register_module("position", std::make_unique<Embedding>(kTokens, kDims, b.random(), s.dtype(), 0.1))),
        block0_(add_block(s, b, net, 0)),
        extra1_(register_module("extra1", b.site())),
        block1_(add_block(s, b, net, 1)),
        norm_(register_module("norm", std::make_unique<LayerNorm>(kDims, s.dtype()))),
        extra2_(register_module("extra2", b.site())),
        head_(register_module("head", b.linear(kDims, kTextTokens))) {}

 protected:
  Tensor forward(const Tensor& tokens) override {
    std::vector<std::int64_t> places(static_cast<std::size_t>(tokens.size(1)));
    std::iota(places.begin(), places.end(), 0);
    const Tensor value = add(token_(tokens), position_(Tensor::from_indices(places, {tokens.size(1)})));
    return head_(extra2_(norm_(block1_(extra1_(block0_(value))))));
  }

 private:
  TransformerBlock& add_block(const Settings& s, Builder& b, Network& net, std::uint64_t number) {
    const TransformerOptions options{
        .dims = kDims, .heads = 2, .context = kTokens, .dropout = s.dropout, .dtype = s.dtype(), .seed = s.seed};
    TransformerBlock& block = register_module(
        "block" + std::to_string(number),
        std::make_unique<TransformerBlock>(options, b.random(), kDropoutStream + 16 + 3 * number));
    net.blocks.push_back(&block);
    return block;
  }

  Module &token_, &position_;
  TransformerBlock& block0_;
  Module& extra1_;
  TransformerBlock& block1_;
  Module &norm_, &extra2_, &head_;
};

}  // namespace

Network make_network(const Settings& settings) {
  Network net;
  Builder builder(settings, net);
  switch (settings.model) {
    case ModelKind::kMlp: net.model = make_mlp(settings, builder); break;
    case ModelKind::kCnn: net.model = make_cnn(settings, builder); break;
    case ModelKind::kUNet: net.model = std::make_unique<SmallUNet>(builder); break;
    case ModelKind::kGpt: net.model = std::make_unique<SmallGpt>(settings, builder, net); break;
  }
  if (settings.rename_seed) net.model->randomise_names(*settings.rename_seed);
  return net;
}

BatchSource make_batches(const Settings& s) {
  const DType dtype = s.dtype();
  if (s.model == ModelKind::kGpt) return text_train_batches(kTextBatch, kTokens, s.seed);
  if (s.regression) return upscaling_train_batches(kBatch, s.seed, dtype);
  return digits_train_batches(kBatch, s.seed, dtype);
}

Tensor base_loss(const Settings& s, const Tensor& output, const Batch& batch) {
  if (s.model == ModelKind::kGpt) {
    const Tensor logits = to(reshape(output, {-1, output.size(-1)}), DType::kF32);
    return cross_entropy(logits, reshape(batch.targets, {-1}));
  }
  if (!s.regression) return cross_entropy(to(output, DType::kF32), batch.targets);
  const Tensor error = sub(to(output, DType::kF32), to(batch.targets, DType::kF32));
  return mean(mul(error, error));
}

}  // namespace nanhunt::campaign
