#include "server/status_page.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "core/base/html.h"
#include "core/base/units.h"
#include "server/status_style.h"

namespace kvbridge::server {
namespace {

using base::EscapeHtml;
using base::HumanBytes;

constexpr int kRefreshSeconds = 5;
// Of a pool or of a queue: above it, it is coloured.
constexpr double kNearlyFull = 0.8;
constexpr int kSoonDays = 14;
constexpr int kVerySoonDays = 3;

// --- words

// "12,345".
std::string Number(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

// With a digit after the point where there are few before it: "3.4", "34", "12,345".
std::string Rounded(double value) {
  if (value < 0.05 || value >= 9.95) return Number(std::llround(value));
  return absl::StrFormat("%.1f", value);
}

std::string Percent(double share) { return absl::StrCat(Rounded(100 * share), " %"); }

std::string Milliseconds(double ms) {
  return ms < 9950 ? absl::StrCat(Rounded(ms), " ms") : absl::StrFormat("%.1f s", ms / 1000);
}

// Its two largest units: "12 s", "5 min 12 s", "4 h", "3 d 4 h".
std::string Span(absl::Duration span) {
  const int64_t s = std::max<int64_t>(0, absl::ToInt64Seconds(span));
  const auto both = [](int64_t large, const char* of_large, int64_t small, const char* of_small) {
    return absl::StrCat(large, of_large, small == 0 ? "" : absl::StrCat(" ", small, of_small));
  };
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return both(s / 60, " min", s % 60, " s");
  if (s < 86400) return both(s / 3600, " h", s / 60 % 60, " min");
  return both(s / 86400, " d", s / 3600 % 24, " h");
}

std::string Utc(absl::Time time, const char* format) {
  return absl::FormatTime(format, time, absl::UTCTimeZone());
}

// How long ago, and when.
std::string Ago(absl::Time then, absl::Time now) {
  return absl::StrCat("<time datetime=\"", Utc(then, "%Y-%m-%dT%H:%M:%E3SZ"), "\" title=\"",
                      Utc(then, "%Y-%m-%d %H:%M:%E3S UTC"), "\">", Span(now - then), " ago</time>");
}

std::string Words(const std::string& name) {
  return EscapeHtml(absl::StrReplaceAll(name, {{"_", " "}}));
}

std::string Chip(const char* kind, const std::string& html) {
  return absl::StrCat("<span class=\"chip ", kind, "\">", html, "</span>");
}

const char* KindOfState(const std::string& state) {
  return state == "ready" ? "good" : state == "degraded" ? "bad" : "warn";
}

const char* KindOfVerdict(const std::string& verdict) {
  return verdict == "PASS" ? "good" : verdict == "FAIL" ? "bad" : "warn";
}

const char* KindOfCircuit(const std::string& circuit) {
  return circuit == "closed" ? "good" : circuit == "open" ? "bad" : "warn";
}

// What a caller or an operator asked for is no fault of the server's.
const char* KindOfClass(const std::string& reason_class) {
  if (reason_class == "policy" || reason_class == "client") return "soft";
  return reason_class == "capacity" ? "warn" : "bad";
}

// --- pieces

// One cell of a row. On a phone a row is a card, where `name` stands over it.
std::string Cell(const char* kind, const char* name, const std::string& html) {
  return absl::StrCat("<td", *kind == 0 ? "" : absl::StrCat(" class=\"", kind, "\""),
                      *name == 0 ? "" : absl::StrCat(" data-name=\"", name, "\""), ">", html,
                      "</td>");
}

std::string Small(const std::string& html, const char* kind = "") {
  if (html.empty()) return "";
  return absl::StrCat("<small", *kind == 0 ? "" : absl::StrCat(" class=\"", kind, "\""), ">", html,
                      "</small>");
}

std::string Tile(const char* name, const std::string& figure, const std::string& note) {
  return absl::StrCat("<div class=\"tile\"><span>", name, "</span><b>", figure, "</b><span>", note,
                      "</span></div>\n");
}

std::string Meter(const std::string& label, double used, double limit) {
  if (limit <= 0) return "";
  const double share = std::clamp(used / limit, 0.0, 1.0);
  return absl::StrFormat(
      "<div class=\"meter%s\" role=\"meter\" aria-label=\"%s\" aria-valuemin=\"0\" "
      "aria-valuemax=\"100\" aria-valuenow=\"%.0f\"><i style=\"width:%.1f%%\"></i></div>",
      share >= kNearlyFull ? " warn" : "", EscapeHtml(label), 100 * share, 100 * share);
}

std::string FellBack(const DecisionCounts& counts) {
  if (counts.all() == 0) return "–";
  return Percent(static_cast<double>(counts.fell_back) / static_cast<double>(counts.all()));
}

std::string Table(const char* title, const char* columns, const std::string& rows) {
  return absl::StrCat("<h2>", title, "</h2>\n<table><thead><tr>", columns, "</tr></thead><tbody>\n",
                      rows, "</tbody></table>\n");
}

// --- sections

double PerSecond(int64_t count, const Status& status) {
  return static_cast<double>(count) / std::max(1.0, absl::ToDoubleSeconds(status.counted()));
}

std::string Header(const Status& status, bool refresh) {
  return absl::StrCat(
      "<header><h1>", EscapeHtml(status.host), "</h1>",
      Chip(KindOfState(status.state), EscapeHtml(status.state)), "</header>\n",
      status.why.empty() ? "" : absl::StrCat("<p class=\"why\">", EscapeHtml(status.why), "</p>"),
      "<p class=\"meta\">kvbridged ", EscapeHtml(status.version), " (", EscapeHtml(status.revision),
      ") · ", EscapeHtml(status.backend), " · up ", Span(status.now - status.started), " · ",
      Utc(status.now, "%Y-%m-%d %H:%M:%S UTC"), " · ",
      refresh ? absl::StrCat("every ", kRefreshSeconds, " s, <a href=\"?refresh=off\">pause</a>")
              : "paused, <a href=\"?\">go on</a>",
      "</p>\n");
}

std::string Tiles(const Status& status) {
  const DecisionCounts& total = status.minute.total;
  const LatencyStatus& latency = status.latency;
  const std::string span = " in " + Span(absl::Ceil(status.counted(), absl::Seconds(1)));
  return absl::StrCat(
      "<div class=\"tiles\">\n",
      Tile("Transfers", Rounded(PerSecond(total.all(), status)) + " /s",
           Number(total.all()) + span),
      Tile("Tokens mapped", Rounded(PerSecond(total.tokens, status)) + " /s",
           Number(total.tokens) + span),
      Tile("Fell back", FellBack(total), Number(total.fell_back) + span),
      Tile("Applied in", latency.samples == 0 ? "–" : Milliseconds(latency.p50_ms),
           latency.samples == 0
               ? "none yet"
               : absl::StrCat("p99 ", Milliseconds(latency.p99_ms), " of ", latency.samples)),
      Tile("In flight", Number(status.inflight_transfers), "of " + Number(status.inflight_limit)),
      Tile("Queued tiles", Number(status.queued), "of " + Number(status.queue_limit)), "</div>\n");
}

// Sixty bars, the running second on the right.
std::string Chart(const Status& status) {
  constexpr double kHeight = 76, kStep = 10, kBar = 8.4;
  int64_t peak = 0;
  for (const DecisionCounts& second : status.minute.seconds) peak = std::max(peak, second.all());
  std::string bars;
  for (size_t i = 0; i < status.minute.seconds.size() && peak > 0; ++i) {
    const double scale = (kHeight - 4) / static_cast<double>(peak);
    double y = kHeight;
    const auto bar = [&](const char* kind, int64_t count) {
      const double height = scale * static_cast<double>(count);
      y -= height;
      if (count == 0) return;
      absl::StrAppendFormat(
          &bars, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", kind,
          kStep * static_cast<double>(i) + (kStep - kBar) / 2, y, kBar, height);
    };
    bar("applied", status.minute.seconds[i].applied);
    bar("fell", status.minute.seconds[i].fell_back);
  }
  return absl::StrCat(
      "<figure><svg viewBox=\"0 0 600 76\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
      "Transfers of the last minute by second, ", peak, " at most\">", bars,
      "</svg><figcaption><span>60 s ago</span><span class=\"keys\"><span "
      "class=\"key\">applied</span>"
      "<span class=\"key fell\">fell back</span><span>",
      Number(peak), " a second at most</span></span><span>now</span></figcaption></figure>\n");
}

std::string Artifact(const RouteStatus& route) {
  if (route.artifact.empty()) return Chip("bad", "none");
  return absl::StrCat(Chip(KindOfVerdict(route.verdict), EscapeHtml(route.verdict)), " <code>",
                      EscapeHtml(route.artifact), "</code>");
}

std::string RouteRow(const Status& status, const RouteStatus& route) {
  const auto found = status.minute.routes.find(route.name);
  const DecisionCounts counts =
      found == status.minute.routes.end() ? DecisionCounts() : found->second;
  const std::string models = route.source.empty() ? ""
                                                  : absl::StrCat(EscapeHtml(route.source), " → ",
                                                                 EscapeHtml(route.target));
  const std::string stage =
      route.stage == "canary" ? absl::StrCat("canary ", Percent(route.canary_share)) : route.stage;
  return absl::StrCat(
      "<tr>",
      Cell("wide", "",
           absl::StrCat("<b>", EscapeHtml(route.name), "</b>", Small(models),
                        Small(EscapeHtml(route.note), "why"))),
      Cell("t", "Stage", EscapeHtml(stage)),
      Cell("t", "Circuit",
           absl::StrCat("<span class=\"", KindOfCircuit(route.circuit), "\">", Words(route.circuit),
                        "</span>")),
      Cell("t", "Artifact", Artifact(route)),
      Cell("n", "Weights", route.artifact.empty() ? "–" : HumanBytes(route.resident_bytes)),
      Cell("n", "Transfers", Rounded(PerSecond(counts.all(), status)) + " /s"),
      Cell("n", "Fell back", FellBack(counts)), "</tr>\n");
}

std::string Routes(const Status& status) {
  if (status.routes.empty()) {
    return "<h2>Routes</h2><p class=\"empty\">None is configured: every transfer falls back.</p>\n";
  }
  std::string rows;
  for (const RouteStatus& route : status.routes) rows += RouteRow(status, route);
  return Table(
      "Routes",
      "<th>Route</th><th>Stage</th><th>Circuit</th><th>Artifact</th><th "
      "class=\"n\">Weights</th><th class=\"n\">Transfers</th><th class=\"n\">Fell back</th>",
      rows);
}

std::string Fallbacks(const Status& status) {
  if (status.fallbacks.empty()) {
    return "<h2>Last fallbacks</h2><p class=\"empty\">None lately.</p>\n";
  }
  std::string rows;
  for (const FallbackStatus& fallback : status.fallbacks) {
    absl::StrAppend(&rows, "<tr>", Cell("t", "", Ago(fallback.time, status.now)),
                    Cell("", "", EscapeHtml(fallback.route)),
                    Cell("t wide", "",
                         Chip(KindOfClass(fallback.reason_class),
                              absl::StrCat("<span title=\"", EscapeHtml(fallback.reason_class),
                                           "\">", EscapeHtml(fallback.reason), "</span>"))),
                    Cell("wide", "",
                         absl::StrCat(EscapeHtml(fallback.detail),
                                      Small(absl::StrCat("<code>", EscapeHtml(fallback.request_id),
                                                         "</code>")))),
                    "</tr>\n");
  }
  return Table("Last fallbacks",
               "<th>When</th><th>Route</th><th>Reason</th><th>Detail and request</th>", rows);
}

std::string Changes(const Status& status) {
  if (status.changes.empty()) return "";
  std::string rows;
  for (const ChangeStatus& change : status.changes) {
    absl::StrAppend(
        &rows, "<tr>", Cell("t", "", Ago(change.time, status.now)),
        Cell("", "", EscapeHtml(change.route)),
        Cell("t", "",
             absl::StrCat(EscapeHtml(change.what), ": ", Words(change.from), " → ",
                          Words(change.to))),
        Cell("", "",
             absl::StrCat("by ", EscapeHtml(change.cause), Small(EscapeHtml(change.detail)))),
        "</tr>\n");
  }
  return Table("Last changes of routes", "<th>When</th><th>Route</th><th>What</th><th>Why</th>",
               rows);
}

std::string Memory(const Status& status) {
  std::string rows;
  for (const PoolStatus& pool : status.pools) {
    const std::string limit =
        pool.limit_bytes == 0 ? "" : absl::StrCat(" of ", HumanBytes(pool.limit_bytes));
    absl::StrAppend(&rows, "<dt>", EscapeHtml(pool.name), "</dt><dd>", HumanBytes(pool.used_bytes),
                    limit,
                    Meter(pool.name, static_cast<double>(pool.used_bytes),
                          static_cast<double>(pool.limit_bytes)),
                    "</dd>\n");
  }
  return absl::StrCat("<div><h2>Memory</h2><dl>\n", rows, "</dl></div>\n");
}

std::string Certificate(const CertificateStatus& certificate, absl::Time now) {
  const auto days = static_cast<int64_t>(
      std::floor(absl::FDivDuration(certificate.expires - now, absl::Hours(24))));
  const char* kind = days < kVerySoonDays ? "bad" : days < kSoonDays ? "warn" : "good";
  const std::string left = certificate.expires <= now
                               ? "expired"
                               : absl::StrCat(days, days == 1 ? " day" : " days", " left");
  return absl::StrCat("<dt>", EscapeHtml(certificate.role), "</dt><dd><span class=\"", kind, "\">",
                      left, "</span> <span class=\"soft\">",
                      Utc(certificate.expires, "until %Y-%m-%d %H:%M UTC"), "</span></dd>\n");
}

std::string Certificates(const Status& status) {
  std::string rows;
  for (const CertificateStatus& each : status.certificates) rows += Certificate(each, status.now);
  return absl::StrCat("<div><h2>Certificates</h2>",
                      status.tls ? absl::StrCat("<dl>\n", rows, "</dl>")
                                 : "<p class=\"empty\">None: this server speaks plaintext.</p>",
                      "</div>\n");
}

}  // namespace

std::string StatusHtml(const Status& status, bool refresh) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
      refresh ? absl::StrCat("<meta http-equiv=\"refresh\" content=\"", kRefreshSeconds, "\">")
              : "",
      "<link rel=\"icon\" href=\"data:,\"><title>", EscapeHtml(status.state), " · ",
      EscapeHtml(status.host), " · kvbridged</title><style>", kStatusStyle,
      "</style></head>\n<body><main>\n", Header(status, refresh), Tiles(status), Chart(status),
      Routes(status), Fallbacks(status), Changes(status), "<div class=\"cols\">\n", Memory(status),
      Certificates(status),
      "</div>\n<footer><a href=\"/metrics\">metrics</a><a href=\"/eventz\">events</a>"
      "<a href=\"/artifactz\">artifacts</a><a href=\"/configz\">configuration</a>"
      "<a href=\"/statusz?format=json\">this page as JSON</a></footer>\n</main></body></html>\n");
}

}  // namespace kvbridge::server
