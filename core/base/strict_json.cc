#include "core/base/strict_json.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvbridge::base {
namespace {

// What an error message quotes of a text: short, and never half a UTF-8 character.
absl::string_view Excerpt(absl::string_view text) {
  size_t end = std::min<size_t>(text.size(), 64);
  while (end < text.size() && end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// Refuses during the parse what a DOM can no longer show: duplicate keys, depth, infinite numbers.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(Json* root, int max_depth)
      : dom_(*root, /*allow_exceptions=*/false), max_depth_(max_depth) {}

  const std::string& error() const { return error_; }

  bool null() override { return dom_.null(); }
  bool boolean(bool value) override { return dom_.boolean(value); }
  bool number_integer(number_integer_t value) override { return dom_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return dom_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Refuse(absl::StrCat("the number ", text, " is not finite"));
    return dom_.number_float(value, text);
  }
  bool string(string_t& value) override { return dom_.string(value); }
  bool binary(binary_t& value) override { return dom_.binary(value); }
  bool start_object(std::size_t size) override { return Enter() && dom_.start_object(size); }
  bool end_object() override {
    keys_.pop_back();
    return dom_.end_object();
  }
  bool start_array(std::size_t size) override { return Enter() && dom_.start_array(size); }
  bool end_array() override {
    keys_.pop_back();
    return dom_.end_array();
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second) {
      return Refuse(absl::StrFormat("the key \"%s\" appears twice in one object", Excerpt(value)));
    }
    return dom_.key(value);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("not JSON at byte ", position));
  }

 private:
  bool Enter() {
    if (keys_.size() >= static_cast<size_t>(max_depth_)) {
      return Refuse(absl::StrCat("nested deeper than ", max_depth_, " levels"));
    }
    keys_.emplace_back();
    return true;
  }
  bool Refuse(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }

  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  const int max_depth_;
  std::vector<std::set<std::string>> keys_;
  std::string error_;
};

std::string TypeName(const Json& value) {
  if (value.is_number_float()) return absl::StrCat("the number ", value.dump());
  if (value.is_number()) return absl::StrCat("the integer ", value.dump());
  if (value.is_string())
    return absl::StrCat("the string \"", Excerpt(value.get_ref<const std::string&>()), "\"");
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  return std::string(value.type_name());
}

absl::Status WrongType(absl::string_view path, absl::string_view key, absl::string_view expected,
                       const Json& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ".", key, ": expected ", expected, ", got ", TypeName(got)));
}

absl::StatusOr<const Json*> Member(const Json& object, absl::string_view key,
                                   absl::string_view path, absl::string_view expected) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an object, got ", TypeName(object)));
  }
  auto it = object.find(std::string(key));
  if (it == object.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".", key, ": expected ", expected, ", got nothing"));
  }
  return &*it;
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text, absl::string_view what,
                                     JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected at most ", limits.max_bytes, " bytes, got ", text.size()));
  }
  // The library skips a byte order mark in silence; other readers refuse it, and digests would
  // differ.
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    return absl::InvalidArgumentError(absl::StrCat(what, ": starts with a byte order mark"));
  }
  Json root;
  StrictBuilder builder(&root, limits.max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", builder.error().empty() ? "not JSON" : builder.error()));
  }
  return root;
}

std::string CanonicalJson(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

absl::StatusOr<int64_t> GetInt(const Json& object, absl::string_view key, absl::string_view path,
                               int64_t min, int64_t max) {
  const std::string expected = absl::StrCat("an integer in ", min, "..", max);
  auto member = Member(object, key, path, expected);
  if (!member.ok()) return member.status();
  const Json& value = **member;
  if (!value.is_number_integer()) return WrongType(path, key, expected, value);
  const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  if (too_big || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return WrongType(path, key, expected, value);
  }
  return value.get<int64_t>();
}

absl::StatusOr<double> GetFinite(const Json& object, absl::string_view key,
                                 absl::string_view path) {
  auto member = Member(object, key, path, "a finite number");
  if (!member.ok()) return member.status();
  if (!(*member)->is_number()) return WrongType(path, key, "a finite number", **member);
  return (*member)->get<double>();
}

absl::StatusOr<std::optional<double>> GetFiniteOrNull(const Json& object, absl::string_view key,
                                                      absl::string_view path) {
  const auto it = object.find(std::string(key));
  if (it != object.end() && it->is_null()) return std::optional<double>();
  const auto value = GetFinite(object, key, path);
  if (!value.ok()) return value.status();
  return std::optional<double>(*value);
}

Json NumberOrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

absl::StatusOr<bool> GetBool(const Json& object, absl::string_view key, absl::string_view path) {
  auto member = Member(object, key, path, "true or false");
  if (!member.ok()) return member.status();
  if (!(*member)->is_boolean()) return WrongType(path, key, "true or false", **member);
  return (*member)->get<bool>();
}

absl::StatusOr<std::string> GetString(const Json& object, absl::string_view key,
                                      absl::string_view path) {
  auto member = Member(object, key, path, "a string");
  if (!member.ok()) return member.status();
  if (!(*member)->is_string()) return WrongType(path, key, "a string", **member);
  return (*member)->get<std::string>();
}

absl::StatusOr<const Json*> GetObject(const Json& object, absl::string_view key,
                                      absl::string_view path) {
  auto member = Member(object, key, path, "an object");
  if (!member.ok()) return member.status();
  if (!(*member)->is_object()) return WrongType(path, key, "an object", **member);
  return *member;
}

absl::StatusOr<const Json*> GetArray(const Json& object, absl::string_view key,
                                     absl::string_view path) {
  auto member = Member(object, key, path, "an array");
  if (!member.ok()) return member.status();
  if (!(*member)->is_array()) return WrongType(path, key, "an array", **member);
  return *member;
}

absl::Status RefuseUnknownKeys(const Json& object, std::initializer_list<absl::string_view> known,
                               absl::string_view path) {
  for (const auto& item : object.items()) {
    bool found = false;
    for (absl::string_view name : known) found = found || absl::string_view(item.key()) == name;
    if (!found) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".", Excerpt(item.key()), ": unknown key"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::base
