# SPDX-License-Identifier: Apache-2.0
# The part of the engine that trains: random numbers, data, modules, models, optimizers, Trainer.
set(NANHUNT_ENGINE_TRAINING_SOURCES
  random/philox.cpp
  data/batches.cpp data/digits.cpp data/digits_file.cpp data/text.cpp data/text_file.cpp
  modules/layers.cpp modules/module.cpp modules/transformer.cpp modules/vision.cpp
  models/cnn.cpp models/gpt.cpp models/mlp.cpp models/unet.cpp
  optim/adam.cpp optim/fused.cpp optim/make_optimizer.cpp optim/sgd.cpp optim/stepped_optimizer.cpp
  trainer.cpp)
# Data sets are assembled into *_file.cpp, which must be built again when they change.
set(_digits_csv "${CMAKE_CURRENT_SOURCE_DIR}/data/digits.csv")
set_source_files_properties(data/digits_file.cpp PROPERTIES
  COMPILE_DEFINITIONS "NANHUNT_DIGITS_CSV=\"${_digits_csv}\"" OBJECT_DEPENDS "${_digits_csv}")
set(_text_file "${CMAKE_CURRENT_SOURCE_DIR}/data/text.txt")
set_source_files_properties(data/text_file.cpp PROPERTIES
  COMPILE_DEFINITIONS "NANHUNT_TEXT_FILE=\"${_text_file}\"" OBJECT_DEPENDS "${_text_file}")
