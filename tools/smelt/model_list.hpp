// SPDX-License-Identifier: Apache-2.0
//
// model_list: the models that the program knows, as a list of types.
//
//   struct mine : smelt::language_model<body, smelt::vocabulary<257>, smelt::tied> {
//     static constexpr std::string_view name = "mine";               // on the command line
//     static constexpr std::string_view architecture = "baseline";   // to a scaling law
//     static constexpr std::int64_t end_of_text = 256;               // as in the shards
//   };
//   namespace smelt_models { using all = smelt_tool::model_list<mine>; }
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "smelt/io/message.hpp"
#include "smelt/smelt.hpp"

namespace smelt_tool {

/// A language model with what the program has to know besides.
template <class M>
concept listed_model = smelt::has_head<M> && requires {
  { M::name } -> std::convertible_to<std::string_view>;
  { M::architecture } -> std::convertible_to<std::string_view>;
  { M::end_of_text } -> std::convertible_to<std::int64_t>;
};

template <class... Models>
struct model_list {
  static_assert((listed_model<Models> && ...),
                "model_list<Models...>: each must be a language_model<...> with name, architecture "
                "and end_of_text");
  static_assert(sizeof...(Models) > 0, "model_list<Models...>: name at least one model");

  /// Calls use.template operator()<Model>() for each, in order.
  template <class Use>
  static void each(Use&& use) {
    (use.template operator()<Models>(), ...);
  }

  /// Calls use.template operator()<Model>() for the model of this name.
  template <class Use>
  static void with(std::string_view name, Use&& use) {
    each([&]<class Model>() {
      if (Model::name == name) use.template operator()<Model>();
    });
  }

  /// @throws smelt::error with the names that there are, where this is none of them.
  static void expect(std::string_view name) {
    std::string names;
    bool is_found = false;
    each([&]<class Model>() {
      names += (names.empty() ? "" : ", ") + std::string(Model::name);
      is_found = is_found || Model::name == name;
    });
    if (!is_found)
      throw smelt::detail::io_error("MODEL", "one of " + names, smelt::detail::quoted_name(name),
                                    "smelt models describes them");
  }
};

}  // namespace smelt_tool
