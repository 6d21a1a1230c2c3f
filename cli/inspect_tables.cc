#include "inspect_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace strata {
namespace {

// "0.31 0.35 0.34": one number per level.
std::string per_level(const Json& levels, const char* key, const char* format) {
  std::string text;
  for (const Json& level : levels) {
    const Json& value = key == nullptr ? level : level.contains(key) ? level.at(key) : Json();
    text +=
        (text.empty() ? "" : " ") + (value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-");
  }
  return text;
}

// Of the identities of the theory, the largest over heads and levels.
struct Residuals {
  double orthogonality = 0, upsampling = 0, projection = 0, filters = 0, components = 0, worst_decay = 0;
  double least_beyond = 1, most_beyond = 0;
  std::string psd_problem;

  void add(const Json& head) {
    auto most = [](double& largest, const Json& from, const char* key) {
      if (from.contains(key)) largest = std::max(largest, from.at(key).get<double>());
    };
    most(components, head.at("error"), "residual");
    for (const Json& level : head.at("symmetry")) {
      most(orthogonality, level, "orthogonality");
      most(upsampling, level, "upsampling");
      most(projection, level, "projection");
      most(filters, level, "filters");
    }
    const Json& psd = head.at("psd");
    psd_problem = psd.value("problem", psd_problem);
    for (const Json& level : psd.value("levels", Json::array())) {
      least_beyond = std::min(least_beyond, level.at("beyond_keys").get<double>());
      most(most_beyond, level, "beyond_keys");
    }
    for (const Json& step : head.at("decay")) most(worst_decay, step, "worst");
  }

  void print() const {
    const std::string of_projections =
        psd_problem.empty()
            ? fmt::format(", with\nprojections to {:.1e} and with filters to {:.1e}; ", projection, filters)
            : ";\n";
    fmt::print(
        "\nchecked: the symmetric and antisymmetric parts are orthogonal to {:.1e}, their split commutes with "
        "up-sampling to {:.1e}{}the components sum to the KL to {:.1e}; cutting levels stays below its bound\n"
        "(at most {:.2f} of it)\n",
        orthogonality, upsampling, of_projections, components, worst_decay);
    if (!psd_problem.empty()) return fmt::print("the PSD condition, and the split of projections: {}\n", psd_problem);
    fmt::print("PSD needs queries that are a linear map of the keys; of W_Q, {:.3f} to {:.3f} lies beyond such maps\n",
               std::min(least_beyond, most_beyond), most_beyond);
  }
};

void print_hkt(const Json& result) {
  fmt::print("{:<6} {:<5} {:<17} {:<5} {:<9} {:<17} {:>9} {:>10} {:>9} {:>10}  {}\n", "layer", "head", "level weights",
             "PSD", "neg. mass", "directional", "KL", "resolution", "filter", "correction", "kurtosis / expected");
  Residuals residuals;
  for (const Json& layer : result.at("layers")) {
    for (const Json& head : layer.at("heads")) {
      if (head.contains("problem")) continue;
      const Json &error = head.at("error"), &psd = head.at("psd");
      fmt::print(
          "{:<6} {:<5} {:<17} {:<5} {:<9.3f} {:<17} {:>9.4f} {:>10.4f} {:>9.4f} {:>10.4f}  {}\n",
          layer.at("layer").get<int>(), head.at("head").get<int>(), per_level(head.at("weights"), nullptr, "{:.3f}"),
          psd.contains("problem")                      ? "-"
          : psd.at("sufficient_condition").get<bool>() ? "yes"
                                                       : "no",
          psd.at("scores").at("negative_mass").get<double>(),
          per_level(head.at("symmetry"), "directional_share", "{:.3f}"), error.at("kl").get<double>(),
          error.at("resolution").get<double>(), error.at("filter").get<double>(), error.at("correction").get<double>(),
          per_level(head.at("gaussianity").at("scores"), "kurtosis_ratio", "{:.2f}"));
      residuals.add(head);
    }
  }
  residuals.print();
}

// The cost of each balanced tree and its two bounds, a line each.
std::string counted_costs(const Json& alternatives) {
  std::string text;
  for (const Json& other : alternatives) {
    text += fmt::format("{:<12} {:>8.4f} {:>12.4f} {:>11.4f}\n", other.at("tree").get<std::string>(),
                        other.at("cost").get<double>(), other.at("linear_bound").get<double>(),
                        other.at("logarithm_bound").get<double>());
  }
  return text;
}

void print_tree(const Json& result) {
  fmt::print("{:<6} {:<5} {:>8} {:>8}  {:<34} {}\n", "layer", "head", "KL gap", "cost",
             "mass: self, then root downwards", "nearest balanced tree in cost");
  double energy = 0;
  std::string costs;
  for (const Json& layer : result.at("layers")) {
    for (const Json& head : layer.at("heads")) {
      const double cost = head.at("cost");
      const Json* nearest = nullptr;
      for (const Json& other : head.at("alternatives")) {
        if (nearest == nullptr ||
            std::abs(other.at("cost").get<double>() - cost) < std::abs(nearest->at("cost").get<double>() - cost))
          nearest = &other;
      }
      fmt::print("{:<6} {:<5} {:>8.4f} {:>8.4f}  {:<34} {}: KL gap {:.4f}, cost {:.4f}\n", layer.at("layer").get<int>(),
                 head.at("head").get<int>(), head.at("kl_gap").get<double>(), cost,
                 per_level(head.at("mass_by_depth"), nullptr, "{:.3f}"), nearest->at("tree").get<std::string>(),
                 nearest->at("kl_gap").get<double>(), nearest->at("cost").get<double>());
      energy = std::max(energy, head.at("energy").get<double>());
      costs = counted_costs(head.at("alternatives"));  // the same for all heads
    }
  }
  fmt::print(
      "\nKL gap: nats per token to {} on the same queries and keys. Cost: score products over flat "
      "attention's.\n",
      result.at("attention") == "hsa" ? "softmax" : "HKT's attention");
  fmt::print("checked: the scores and the entropy of the attention make f(root) to {:.1e} nats per token\n", energy);
  if (!costs.empty())
    fmt::print("\n{:<12} {:>8} {:>12} {:>11}   bounds: b (b T / (b - 1) + H) and b^2 T H, with H heights\n{}", "tree",
               "cost", "by families", "by heights", costs);
}

void print_stream(const Json& result) {
  fmt::print("{:<6} {:<5} {:>4} {:>5} {:>9} {:>9} {:>12} {:>8}  {}\n", "layer", "head", "b", "near", "KL", "delta^2/8",
             "certificate", "cost", "KL with near 1, 2, 4 at the same b");
  double kl = 0, range = 0, certificate = 0;
  for (const Json& layer : result.at("layers")) {
    for (const Json& head : layer.at("heads")) {
      std::string others;
      for (const Json& other : head.at("alternatives")) {
        if (other.at("branching") == head.at("branching"))
          others += fmt::format("{}{:.5f}", others.empty() ? "" : ", ", other.at("kl").get<double>());
      }
      fmt::print("{:<6} {:<5} {:>4} {:>5} {:>9.5f} {:>9.4f} {:>12.4f} {:>8.4f}  {}\n", layer.at("layer").get<int>(),
                 head.at("head").get<int>(), head.at("branching").get<int>(), head.at("near").get<int>(),
                 head.at("kl").get<double>(), head.at("range_bound").get<double>(),
                 head.at("certificate").get<double>(), head.at("cost").get<double>(),
                 others.empty() ? "see the JSON file" : others);
      kl += head.at("kl").get<double>();
      range += head.at("range_bound").get<double>();
      certificate += head.at("certificate").get<double>();
    }
  }
  if (range > 0)
    fmt::print("\ntightness, over all heads: the KL is {:.1f}% of delta^2/8 and {:.2f}% of the certificate\n",
               100 * kl / range, 100 * kl / certificate);
  fmt::print(
      "\nKL: nats per token from attention on the same scores without a hierarchy, exactly. delta^2/8 bounds it by the "
      "range of the scores\nwithin nodes, the certificate by how far keys are from their nodes' means, at the cost of "
      "the attention. Means over tokens. Cost:\nscore products over attention without a hierarchy.\n");
}

}  // namespace

void print_inspected(const Json& result) {
  const std::string form = result.at("form");
  (form == "tree" ? print_tree : form == "stream" ? print_stream : print_hkt)(result);
}

}  // namespace strata
