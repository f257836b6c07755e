// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/transformer.h"

#include <gmock/gmock.h>

#include <set>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

GptOptions tiny(double dropout = 0) {
  GptOptions options{.vocabulary = 11, .layers = 2, .block = {}};
  options.block.dims = 8;
  options.block.heads = 2;
  options.block.context = 6;
  options.block.dropout = dropout;
  options.block.dtype = DType::kF64;
  return options;
}

Tensor tokens(std::vector<std::int64_t> list, std::int64_t rows = 1) {
  const auto n = static_cast<std::int64_t>(list.size());
  return Tensor::from_indices(list, {rows, n / rows});
}

TEST(Dropout, does_nothing_outside_training) {
  Dropout layer(0.5, RandomStream(1, 1));
  const Tensor x = Tensor::full({64}, 1, DType::kF32);
  EXPECT_NE(layer(x).to_vector(), x.to_vector());
  layer.train(false);
  EXPECT_EQ(layer(x).to_vector(), x.to_vector());
  EXPECT_THROW(Dropout(1.5, RandomStream(1, 1)), std::invalid_argument);
}

TEST(LayerNorm, starts_as_plain_normalisation) {
  LayerNorm layer(4, DType::kF64);
  ASSERT_THAT(layer.named_parameters(), SizeIs(2));
  const Tensor x = testing::spread_tensor({3, 4}, -2, 2);
  EXPECT_EQ(layer(x).to_vector(), layer_norm(x, {}, {}).to_vector());
}

TEST(Gpt, does_not_look_at_later_tokens) {
  Gpt model(tiny());
  const Tensor a = model(tokens({1, 2, 3, 4, 5, 6})), b = model(tokens({1, 2, 3, 9, 0, 10}));
  ASSERT_EQ(a.sizes(), (Shape{1, 6, 11}));
  EXPECT_EQ(narrow(a, 1, 0, 3).to_vector(), narrow(b, 1, 0, 3).to_vector());
  EXPECT_NE(select(a, 1, 3).to_vector(), select(b, 1, 3).to_vector());
}

TEST(Gpt, sees_all_tokens_when_it_is_not_causal) {
  GptOptions options = tiny();
  options.block.causal = false;
  Gpt model(options);
  EXPECT_NE(select(model(tokens({1, 2, 3})), 1, 0).to_vector(), select(model(tokens({1, 2, 4})), 1, 0).to_vector());
  EXPECT_THAT(model.named_buffers(), SizeIs(0));
}

TEST(Gpt, does_not_look_at_padding) {
  // given: two rows, whose last two tokens are padding in the second
  GptOptions options = tiny();
  options.block.causal = false;
  Gpt model(options);
  model.set_key_mask(Tensor::from_values(std::vector<double>{0, 0, 0, 0, 0, 0, 1, 1}, {2, 4}, DType::kBool));
  const Tensor a = model(tokens({1, 2, 3, 4, 1, 2, 3, 4}, 2)), b = model(tokens({1, 2, 3, 4, 1, 2, 9, 10}, 2));
  // then: what stands in the padding does not matter to the tokens before it
  EXPECT_EQ(narrow(select(a, 0, 1), 0, 0, 2).to_vector(), narrow(select(b, 0, 1), 0, 0, 2).to_vector());
  // and: without the mask it does
  model.set_key_mask({});
  EXPECT_NE(narrow(select(model(tokens({1, 2, 3, 4, 1, 2, 9, 10}, 2)), 0, 1), 0, 0, 2).to_vector(),
            narrow(select(a, 0, 1), 0, 0, 2).to_vector());
}

TEST(Gpt, gives_each_parameter_a_gradient_that_matches_central_differences) {
  for (const bool tied : {false, true}) {
    GptOptions options = tiny();
    options.tied = tied;
    options.layers = 1;
    Gpt model(options);
    const Batch batch{
        .inputs = tokens({1, 2, 3, 4, 5, 6}, 2), .targets = tokens({2, 3, 4, 5, 6, 7}, 2), .sample_ids = {}};
    std::vector<Tensor> parameters;
    for (const NamedTensor& entry : model.named_parameters()) parameters.push_back(entry.tensor);
    EXPECT_EQ(parameters.size(), tied ? 20U : 21U);
    testing::expect_gradients_match(
        [&](const std::vector<Tensor>&) { return next_token_loss(model(batch.inputs), batch); }, parameters, 2e-7);
  }
}

TEST(Gpt, has_a_path_for_every_layer_and_starts_from_the_seed) {
  Gpt model(tiny()), same(tiny());
  std::set<std::string> paths;
  for (const NamedTensor& entry : model.named_parameters()) paths.insert(entry.path);
  for (const char* path : {"token.weight", "block0.attention.query.weight", "block1.fc2.bias", "norm.weight"}) {
    EXPECT_EQ(paths.count(path), 1U) << path;
  }
  const auto a = model.named_parameters(), b = same.named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].tensor.to_vector(), b[i].tensor.to_vector());
}

TEST(Gpt, draws_other_masks_in_each_layer_and_step_and_the_same_after_a_seek) {
  Gpt model(tiny(0.5));
  const Tensor x = tokens({1, 2, 3});
  const std::vector<RandomStream*> streams = model.random_streams();
  EXPECT_THAT(streams, SizeIs(7));  // the embedding's, and three for each block
  const Tensor first = model(x), second = model(x);
  EXPECT_NE(first.to_vector(), second.to_vector());
  for (RandomStream* stream : streams) stream->seek(0);
  EXPECT_EQ(model(x).to_vector(), first.to_vector());
}

TEST(Gpt, says_what_it_expected) {
  Gpt model(tiny());
  EXPECT_THROW(model(tokens({1, 2, 3, 4, 5, 6, 7})), std::invalid_argument);
  EXPECT_THROW(model(Tensor::zeros({1, 2}, DType::kF32)), std::invalid_argument);
  GptOptions odd = tiny();
  odd.block.heads = 3;
  EXPECT_THROW(Gpt{odd}, std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
