#include "paddle_lite_offload/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "framework/ir/error.h"

namespace plo {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMib = 1 << 20;

json TrainObject(int64_t peak_mib, double ms, const std::string& digest,
                 const std::vector<double>& losses = {3.0, 2.5}) {
  return {{"config", {{"model", "gpt"}, {"offload", "none"}, {"text", ""}}},
          {"losses", losses},
          {"param_digest", digest},
          {"step_ms", {{"median", ms}, {"p90", ms + 1}}},
          {"tokens_per_second", 1e6 / ms},
          {"memory",
           {{"device",
             {{"planned_peak_bytes", peak_mib * kMib},
              {"measured_peak_bytes", peak_mib * kMib},
              {"by_category",
               {{"params", peak_mib * kMib / 4},
                {"activations", peak_mib * kMib * 3 / 4}}}}},
            {"pinned", {{"by_category", {{"optimizer_state", 5 * kMib}}}}}}},
          {"transfers",
           {{"d2h_bytes_per_step", 7 * kMib},
            {"h2d_bytes_per_step", 8 * kMib},
            {"collective_bytes_per_step", nullptr}}}};
}

TEST(ReportTest, SavingsAreSharesOfTheBasePeak) {
  const json comparison =
      MakeComparison({{"base", TrainObject(800, 100, "a")},
                      {"full", TrainObject(500, 110, "a")},
                      {"worse", TrainObject(1000, 90, "b")},
                      {"failed", {{"error", "OutOfMemory: no"}}}});
  EXPECT_EQ(comparison["variants"].size(), 4u);
  EXPECT_EQ(comparison["variants"][1]["name"], "full");
  EXPECT_EQ(comparison["variants"][1]["param_digest"], "a");
  const json& ratios = comparison["device_peak_saving_ratio"];
  EXPECT_DOUBLE_EQ(ratios["base"], 0);
  EXPECT_DOUBLE_EQ(ratios["full"], 0.375);
  EXPECT_DOUBLE_EQ(ratios["worse"], -0.25);
  EXPECT_TRUE(ratios["failed"].is_null());
}

TEST(ReportTest, TextOfJsonHoldsAnyBytes) {
  EXPECT_EQ(JsonText({{"path", "a\xff"}}), "{\n  \"path\": \"a\uFFFD\"\n}\n");
}

TEST(ReportTest, VariantsNeedNamesOfTheirOwn) {
  EXPECT_THROW(MakeComparison({}), Error);
  EXPECT_THROW(MakeComparison({{"a", json::object()}, {"a", json::object()}}),
               Error);
}

TEST(ReportTest, TableIsAligned) {
  const json comparison =
      MakeComparison({{"base", TrainObject(800, 100, "a")},
                      {"full_offload", TrainObject(500, 1110.25, "a")},
                      {"other", TrainObject(500, 90, "b")},
                      {"bad", {{"error", "OutOfMemory: too small"}}}});
  EXPECT_EQ(
      FormatComparisonTable(comparison),
      "variant       device peak MiB  saving  step ms  tokens/s  equal bits\n"
      "base                    800.0       -    100.0     10000           -\n"
      "full_offload            500.0  37.5 %   1110.2       901         yes\n"
      "other                   500.0  37.5 %     90.0     11111          no\n"
      "bad           failed: OutOfMemory: too small\n");
}

TEST(ReportTest, EqualBitsNeedsEqualLosses) {
  const json comparison = MakeComparison(
      {{"base", TrainObject(800, 100, "a", {3.0, 2.5})},
       {"same", TrainObject(800, 100, "a", {3.0, 2.5})},
       {"drift", TrainObject(800, 100, "a", {3.0, 2.5000000001})}});
  const auto cells = ComparisonCells(comparison);
  EXPECT_EQ(cells[2].back(), "yes");
  EXPECT_EQ(cells[3].back(), "no");
}

TEST(ReportTest, MissingValuesShowAsDashes) {
  // What `plan --json` knows.
  json plan = TrainObject(800, 1, "a");
  for (const char* key :
       {"losses", "param_digest", "step_ms", "tokens_per_second"}) {
    plan.erase(key);
  }
  plan["memory"]["device"].erase("measured_peak_bytes");
  const auto cells = ComparisonCells(MakeComparison(
      {{"base", plan}, {"empty", json::object()}, {"plan", plan}}));
  EXPECT_THAT(cells[2], testing::ElementsAre("empty", "-", "-", "-", "-", "-"));
  EXPECT_THAT(cells[3],
              testing::ElementsAre("plan", "800.0", "0.0 %", "-", "-", "-"));
  EXPECT_EQ(ComparisonCells(json::object()).size(), 1u);
}

TEST(ReportTest, HtmlHoldsTablesAndCharts) {
  json full = TrainObject(500, 110, "a");
  full["config"]["offload"] = "optimizer";
  const std::string html = FormatComparisonHtml(
      MakeComparison({{"base", TrainObject(800, 100, "a")}, {"full", full}}));
  EXPECT_THAT(html, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>full</td><td>500.0</td><td>37.5 %</td>"
                              "<td>110.0</td><td>9091</td><td>yes</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<title>params: 200.0 MiB</title>"));
  EXPECT_THAT(html, HasSubstr("Pinned host memory"));
  EXPECT_THAT(html, HasSubstr("<tr><td>base</td><td>7.0</td><td>8.0</td>"
                              "<td>-</td></tr>"));
  // Flags that differ have a column; the others are listed once.
  EXPECT_THAT(html, HasSubstr("<tr><th>variant</th><th>offload</th></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>full</td><td>optimizer</td></tr>"));
  EXPECT_THAT(html, HasSubstr(">--model=gpt</p>"));
  // Self-contained.
  EXPECT_THAT(html, Not(HasSubstr("http")));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
}

TEST(ReportTest, LossCurvesBreakAtValuesThatAreNotFinite) {
  json run = TrainObject(800, 100, "a", {3, 2, 1, 0.5});
  run["losses"][1] = nullptr;
  const std::string html = FormatComparisonHtml(MakeComparison({{"a", run}}));
  size_t curves = 0;
  for (size_t at = 0; (at = html.find("<polyline", at)) != std::string::npos;
       ++at) {
    ++curves;
  }
  EXPECT_EQ(curves, 2u);
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(ReportTest, HtmlIsEscaped) {
  EXPECT_EQ(EscapeHtml("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  json run = TrainObject(800, 100, "a");
  run["config"]["text"] = "<img src=x>";
  const std::string html = FormatComparisonHtml(MakeComparison(
      {{"<b>&", run}, {"bad", {{"error", "<script>alert(1)</script>"}}}}));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, HasSubstr("&lt;b&gt;&amp;"));
}

}  // namespace
}  // namespace plo
