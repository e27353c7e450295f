// SPDX-License-Identifier: Apache-2.0
//
// device: times every kernel of a training step on the GPU at hand, beside what it must do.
//
//   device [PAIR | MOE | TINY]...   without arguments PAIR and MOE; TINY only shows that it runs
//
// One call each on the memory of a model in training, between two events, the median of several;
// then whole steps, with and without a graph. FLOPs and bytes are those of kernel_costs.hpp.
#include "smelt/cuda.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../../examples/03_train_pair/pair.hpp"
#include "kernel_costs.hpp"

namespace smelt::bench {
namespace {

using policy = cuda<bf16>;

// Milliseconds of body() on the device: the median of as many calls as fit into a second.
double milliseconds(const policy& run, const std::function<void()>& body) {
  cudaEvent_t begin, end;
  cuda_detail::check(cudaEventCreate(&begin), "cudaEventCreate");
  cuda_detail::check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  double all = 0.0;
  body();  // scratch, and the kernel's first load
  while (times.size() < 3 || (times.size() < 21 && all < 1000.0)) {
    cuda_detail::check(cudaEventRecord(begin, run.stream()), "cudaEventRecord");
    body();
    cuda_detail::check(cudaEventRecord(end, run.stream()), "cudaEventRecord");
    cuda_detail::check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float time = 0.0F;
    cuda_detail::check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
    times.push_back(static_cast<double>(time));
    all += static_cast<double>(time);
  }
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

token_batch batch_of(std::int64_t sequences, std::int64_t context, std::int64_t vocabulary) {
  token_batch batch(sequences * context);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(context));
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(random_bits(static_cast<std::uint64_t>(s), i) %
                                            static_cast<std::uint64_t>(vocabulary));
    batch.add_segment(tokens.data(), context, no_target);
  }
  return batch;
}

// The calls by the names of kernel_costs, each on the memory of the model's first visit.
template <class Model>
class calls {
 public:
  calls(const policy& run, trainer<Model, policy>& t, const batch_view& batch)
      : run_(run), state_(t.state()), memory_(run, batch.tokens, 1) {
    memory_.stage(run, std::span(&batch, 1), 1e-6, adamw_rates<float>({}, 0.0, 1));
    batch_ = memory_.batch(0);
  }

  std::map<std::string, std::function<void()>> by_name() {
    using detail::constant;
    using detail::rows_of;
    const model_plan& plan = state_.plan;
    const auto& a = state_.activity.visit(0);
    const layer_plan& layer = plan.layers[0];
    const attention_shape& shape = plan.attention;
    auto& work = state_.work;
    const std::int64_t n = batch_.tokens, h = plan.hidden, q = shape.query_width(),
                       kv = shape.kv_width(), k = layer.ffn.top_k, e = layer.ffn.experts;
    const auto residual = rows_of(a.residual_in, n, h), update = rows_of(work.update, n, h);
    const auto dresidual = rows_of(work.dresidual, n, h), dnorm = rows_of(work.dnormalized, n, h);
    const auto input = rows_of(a.attention_input, n, h), ffn_input = rows_of(a.ffn_input, n, h);
    const auto query = rows_of(a.query, n, q), key = rows_of(a.key, n, kv),
               value = rows_of(a.value, n, kv);
    const auto out = rows_of(a.attention_output, n, q);
    const auto dquery = rows_of(work.dquery, n, q), dkey = rows_of(work.dkey, n, kv),
               dvalue = rows_of(work.dvalue, n, kv), dattention = rows_of(work.dattention, n, q);
    const auto narrow_q = rows_of(work.narrow, n, q);
    const auto dupdate = rows_of(work.dupdate, n, h);
    const auto probabilities = rows_of(a.probabilities, n, e);
    const auto dlogits = rows_of(work.dlogits, n, e);
    const auto wide = rows_of(work.widened, n, h);
    const auto slots = rows_of(work.slots, n * k, h);
    const dispatch_plan dispatch = a.dispatch;
    const expert_ffn_shape experts{e, k, h, layer.ffn.width};
    const auto* sums = memory_.sums();
    const auto to_query = [this, n, q, h, input, query, key, value, &layer, kv] {
      product(run_, input, transposed(state_.operand(layer.query)), query);
      product(run_, input, transposed(state_.operand(layer.key)), key);
      product(run_, input, transposed(state_.operand(layer.value)), value);
    };
    const auto projection = [this](const tensor_place& place, auto dy, auto x, auto dx, into mode) {
      detail::projection_backward(run_, state_, place, constant(dy), constant(x), dx, mode);
    };
    std::map<std::string, std::function<void()>> all;
    all["embed_forward"] = [=, this, &plan] {
      embed_forward(run_, batch_.inputs, state_.weights.constant(plan.embedding), residual);
    };
    all["rms_norm_forward"] = [=, this, &a, &layer] {
      rms_norm_forward(run_, constant(residual), state_.weights.at(layer.attention_norm), 1e-6F,
                       input, a.attention_rstd);
    };
    all["product: q, k, v"] = to_query;
    all["rope_rotate"] = [=, this, &shape, &work] {
      rope_rotate(run_, query, shape.head_dim, batch_.positions, work.cosines, work.sines,
                  rope_direction::forward);
      rope_rotate(run_, key, shape.head_dim, batch_.positions, work.cosines, work.sines,
                  rope_direction::forward);
    };
    all["attention_forward"] = [=, this, &a, &shape] {
      attention_forward(run_, shape, batch_.documents, constant(query), constant(key),
                        constant(value), out, a.logsumexp);
    };
    all["product: output"] = [=, this, &layer] {
      product(run_, out, transposed(state_.operand(layer.output)), update);
    };
    all["residual_add"] = [=, this, &a] {
      residual_add(run_, constant(residual), 1.0F, constant(update),
                   rows_of(a.residual_middle, n, h));
    };
    all["product: router"] = [=, this, &layer] {
      product(run_, wide, transposed(state_.weights.constant(layer.router)), dlogits);
    };
    all["route_forward"] = [=, this, &a] {
      route_forward(run_, constant(dlogits), k, true, probabilities, a.chosen, a.expert_weights,
                    a.router_logsumexp);
    };
    all["dispatch_forward"] = [=, this, &a] { dispatch_forward(run_, a.chosen, dispatch); };
    all["expert_ffn_forward"] = [=, this, &a, &layer] {
      expert_ffn_forward(run_, experts, constant(ffn_input), dispatch, a.expert_weights,
                         state_.operand(layer.gate_up).data, state_.operand(layer.down).data,
                         a.gate_up, slots);
    };
    all["combine_forward"] = [=, this] {
      combine_forward(run_, constant(slots), dispatch.slot_of, k, 1.0F, into::overwrite, update);
    };
    all["head_loss"] = [=, this, &plan, &work] {
      head_loss(run_, constant(rows_of(state_.activity.final_input(), n, h)),
                state_.operand(plan.head), batch_.targets, memory_.scale(), work.head, dnorm,
                state_.gradients.matrix(plan.head), &memory_.sums()->loss_sum);
    };
    all["rms_norm_backward"] = [=, this, &a, &layer] {
      rms_norm_backward(run_, constant(dnorm), constant(residual),
                        state_.weights.at(layer.attention_norm), a.attention_rstd, into::accumulate,
                        dresidual, state_.gradients.at(layer.attention_norm));
    };
    all["scaled: gradient of a residual"] = [=, this] {
      scaled(run_, constant(dresidual), 1.0F, update);
    };
    all["expert_ffn_backward"] = [=, this, &a, &layer, &work] {
      expert_ffn_backward(run_, experts, constant(ffn_input), dispatch, a.expert_weights,
                          state_.operand(layer.gate_up).data, state_.operand(layer.down).data,
                          a.gate_up, constant(update), state_.gradients.at(layer.gate_up),
                          state_.gradients.at(layer.down), work.dexpert_weights, slots);
    };
    const balance_setting setting{n, n, 0.01, 0.001};
    all["balance_forward"] = [=, this, &a, &work] {
      balance_forward(run_, constant(probabilities), a.chosen, a.router_logsumexp, k, setting,
                      work.dprobabilities, memory_.expert_counts(), &memory_.sums()->router);
    };
    all["route_backward"] = [=, this, &a, &work] {
      route_backward(
          run_, constant(probabilities), a.chosen, a.expert_weights, k, true, work.dexpert_weights,
          balance_backward<float>(setting, work.dprobabilities, a.router_logsumexp), dlogits);
    };
    all["product: router, backward"] = [=, this, &layer] {
      product(run_, transposed(dlogits), wide, state_.gradients.matrix(layer.router),
              into::accumulate);
      product(run_, dlogits, state_.weights.constant(layer.router), dnorm, into::accumulate);
    };
    all["product: output, backward"] = [=, &layer] {
      projection(layer.output, dupdate, out, dattention, into::overwrite);
    };
    all["attention_backward"] = [=, this, &a, &shape] {
      attention_backward(run_, shape, batch_.documents, constant(dattention), constant(query),
                         constant(key), constant(value), constant(out), a.logsumexp, dquery, dkey,
                         dvalue, into::overwrite);
    };
    all["scaled: operand of a product"] = [=, this] {
      scaled(run_, constant(dquery), 1.0F, narrow_q);
    };
    all["product: q, k, v, backward"] = [=, this, &layer, &work] {
      projection(layer.query, narrow_q, input, dnorm, into::overwrite);
      const auto narrow_kv = rows_of(work.narrow, n, kv);
      projection(layer.key, narrow_kv, input, dnorm, into::accumulate);
      projection(layer.value, narrow_kv, input, dnorm, into::accumulate);
    };
    all["embed_backward"] = [=, this, &plan] {
      embed_backward(run_, batch_.inputs, constant(dresidual),
                     state_.gradients.matrix(plan.embedding));
    };
    all["sum_of_squares"] = [this] {
      sum_of_squares(run_, state_.gradients.data(), state_.gradients.elements(),
                     &memory_.sums()->squares);
    };
    // The gradients stand in for the moments: the same bytes, and the weights are not used again.
    all["adamw_update"] = [this, sums] {
      adamw_update(run_, adamw_setting{}, memory_.rates(), &sums->squares, &sums->loss_sum,
                   state_.weights.elements() / 2, state_.weights.data(), state_.gradients.data(),
                   state_.weights.data() + state_.weights.elements() / 2 / 16 * 16,
                   state_.gradients.data() + state_.weights.elements() / 2 / 16 * 16,
                   state_.copy_data());
    };
    return all;
  }

 private:
  policy run_;
  model_state<policy>& state_;
  step_memory<policy> memory_;
  batch_view batch_;
};

template <class Model>
void show(const char* title, std::int64_t sequences, std::int64_t context) {
  const step_shape s = shape_of<Model>(sequences, context);
  const token_batch batch = batch_of(sequences, context, s.vocabulary);
  training_options options;
  options.batch_tokens = s.tokens;
  options.schedule.steps = 1000;
  const double flops = static_cast<double>(flops_per_step<Model>(s.tokens, s.pairs).total());

  std::printf("%s: %lld tokens in sequences of %lld, hidden %lld, %lld experts of %lld, top-%lld\n",
              title, static_cast<long long>(s.tokens), static_cast<long long>(context),
              static_cast<long long>(s.hidden), static_cast<long long>(s.experts),
              static_cast<long long>(s.width), static_cast<long long>(s.top_k));
  for (const bool graph : {false, true}) {
    policy run;
    run.set_graph(graph);
    trainer<Model, policy> t(run, options, 1);
    for (int warm = 0; warm < 3; ++warm) t.step(batch.view());
    const double time = milliseconds(run, [&] {
      t.submit(batch.view());
      t.finish();
    });
    std::printf("  a step %s graph: %.3f ms, %.0f tokens/s, %.1f TFLOP/s of the model\n",
                graph ? "as one   " : "without a", time, 1e3 * static_cast<double>(s.tokens) / time,
                flops / time / 1e9);
    if (!graph) continue;
    std::printf("  %-32s %6s %10s %10s %9s %9s\n", "kernel", "calls", "us", "TFLOP/s", "GB/s",
                "share");
    calls<Model> all(run, t, batch.view());
    const auto by_name = all.by_name();
    for (const kernel_cost& cost : kernel_costs(s)) {
      // Half the parameters: see adamw_update above.
      const double part = cost.name == "adamw_update" ? 0.5 : 1.0;
      const double ms = milliseconds(run, by_name.at(cost.name));
      std::printf("  %-32s %6lld %10.1f %10.1f %9.0f %8.1f%%\n", cost.name.c_str(),
                  static_cast<long long>(cost.calls), 1e3 * ms, cost.executed / ms / 1e9,
                  part * cost.bytes / ms / 1e6,
                  100 * static_cast<double>(cost.calls) * ms / part / time);
    }
  }
}

struct wide_body : transformer<hidden<4096>, gqa<32, 8, 128>, moe<128, 8, 1024>, stack<plain<1>>> {
};
struct wide : language_model<wide_body, vocabulary<32768>, untied> {};
struct tiny_body : transformer<hidden<32>, gqa<2, 1, 32>, moe<4, 2, 16>, stack<looped<1, 2>>> {};
struct tiny : language_model<tiny_body, vocabulary<64>, tied> {};

int run(const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (name == "PAIR") {
      show<pair::baseline_model>("Baseline of train_pair", 4, pair::context);
      show<pair::smelt_model>("SMELT of train_pair", 4, pair::context);
    } else if (name == "MOE") {
      show<wide>("wide MoE layer", 8, 4096);
    } else if (name == "TINY") {
      show<tiny>("tiny looped model", 2, 40);
    } else {
      std::fprintf(stderr, "device: expected PAIR, MOE or TINY, found %s\n",
                   std::string(name).c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace smelt::bench

int main(int count, char** arguments) {
  try {
    std::vector<std::string_view> names(arguments + 1, arguments + count);
    if (names.empty()) names = {"PAIR", "MOE"};
    return smelt::bench::run(names);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "device: %s\n", e.what());
    return 1;
  }
}
