// What the benchmarks share: their options, the table of figures, and the JSON file with one number per figure.
#pragma once

#include <string>
#include <vector>

#include "bench/roofline.h"

namespace strata::bench {

struct Figure {
  std::string name;
  double value;
  const char* bar;  // what it should be, "" where nothing is asked
  Work work = {};   // of the kernel it is about, ours
};

struct Arguments {
  std::string json;         // where the figures are written, besides the table; "" for nowhere
  std::string build_times;  // a file of clean-build times to be reported as well
  int threads = 2, rounds = 7;
  std::string device = "cpu";
  std::string model, text;  // of `inject`: a Hugging Face folder and a text file, for the figures that need them
};

// Each prints what it measures and returns its figures; docs/PERFORMANCE.md says what they mean.
std::vector<Figure> hkt_figures(const Arguments& arguments);
std::vector<Figure> hsa_figures(const Arguments& arguments);
std::vector<Figure> strata_figures(const Arguments& arguments);
std::vector<Figure> argument_figures(const Arguments& arguments);
std::vector<Figure> train_figures(const Arguments& arguments);
std::vector<Figure> distributed_figures(const Arguments& arguments);
void measure_in_process(const Arguments& arguments);  // the part of each of its processes (train/launch.h)
// Only in builds with ICU.
std::vector<Figure> inject_figures(const Arguments& arguments);
std::vector<Figure> inject_model_figures(const Arguments& arguments);  // a part of them
// On a GPU; only in builds with CUDA.
std::vector<Figure> hkt_cuda_figures(const Arguments& arguments);
std::vector<Figure> hsa_cuda_figures(const Arguments& arguments);
std::vector<Figure> strata_cuda_figures(const Arguments& arguments);
std::vector<Figure> argument_cuda_figures(const Arguments& arguments);
std::vector<Figure> decode_cuda_figures(const Arguments& arguments);
std::vector<Figure> train_cuda_figures(const Arguments& arguments);
std::vector<Figure> inject_cuda_figures(const Arguments& arguments);  // needs ICU as well

// Prints the table, with the floor of each kernel and the share of it that is reached, and adds to the JSON file;
// figures of other benchmarks that already stand there are kept.
void report(const std::vector<Figure>& figures, const Ceilings& ceilings, const Arguments& arguments);
std::vector<Figure> build_figures(const Arguments& arguments);

}  // namespace strata::bench
