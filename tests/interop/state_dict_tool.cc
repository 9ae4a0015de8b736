// SPDX-License-Identifier: Apache-2.0
// Loads a state dict into the tutorial's classifier and saves it again, for test_safetensors.py.
// Usage: state_dict_tool <from> <to>
#include <cstdio>

#include <muster/state_dict.h>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  muster::nn::Model model = muster::nn::garment_classifier();
  auto done = muster::load_state_dict(argv[1], model);
  if (done) done = muster::save_state_dict(argv[2], model);
  if (!done) std::fprintf(stderr, "state_dict_tool: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
