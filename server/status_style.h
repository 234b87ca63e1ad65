// The style sheet of /statusz. Colours are variables, so that everything follows the theme.
#pragma once

namespace kvbridge::server {

inline constexpr char kStatusStyle[] = R"css(
:root{color-scheme:light dark;--bg:#fcfbf8;--ink:#1c2024;--soft:#5b626a;--rule:#dcd8cf;--card:#f3f0e9;
--good:#1b7a46;--warn:#8a5a00;--bad:#b3261e;--bar:#1f5aa8;--fell:#c2690f}
@media (prefers-color-scheme:dark){:root{--bg:#15181b;--ink:#e8e6e1;--soft:#a3a9b0;--rule:#343a40;--card:#1e2327;
--good:#62c48e;--warn:#e0b04c;--bad:#f2877d;--bar:#7ab0f2;--fell:#f0a05a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans","Liberation Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 28px 48px}
a{color:inherit;text-underline-offset:3px;text-decoration-color:var(--soft)}
:focus-visible{outline:2px solid var(--bar);outline-offset:2px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 14px}
h1{font-size:28px;line-height:1.2;font-weight:650;letter-spacing:-.012em;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;font-weight:650;margin:38px 0 8px}
p{margin:4px 0 0}
.soft,.meta{color:var(--soft)}.meta{font-size:13.5px}
.why{color:var(--warn)}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.chip{display:inline-block;padding:1px 10px;border:1.5px solid currentColor;border-radius:99px;
font-size:12.5px;font-weight:650;letter-spacing:.02em;white-space:nowrap}
h1+.chip{font-size:15px;padding:2px 14px;transform:translateY(-3px)}
.tiles{display:grid;grid-template-columns:repeat(6,minmax(0,1fr));gap:12px;margin:22px 0 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px 11px;min-width:0}
.tile span{display:block;font-size:13px;color:var(--soft)}
.tile b{display:block;font-size:23px;line-height:1.35;font-weight:620;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:14px 0 0}
svg{display:block;width:100%;height:76px;border-bottom:1px solid var(--soft)}
svg .applied{fill:var(--bar)}svg .fell{fill:var(--fell)}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;font-size:13px;color:var(--soft);margin-top:4px}
.keys{display:flex;flex-wrap:wrap;gap:0 22px}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px;background:var(--bar)}
.key.fell::before{background:var(--fell)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:7px 18px 7px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap}
td:last-child,th:last-child{padding-right:0}
th.n,td.n{text-align:right}td.n,td.t{white-space:nowrap}
td,dd{overflow-wrap:anywhere}
td small{display:block;color:var(--soft);font-size:12.5px}
td small.why{color:var(--warn)}
code{font:12.5px ui-monospace,"DejaVu Sans Mono",monospace}
.cols{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:0 40px}
dl{display:grid;grid-template-columns:auto minmax(0,1fr);gap:7px 20px;margin:0;font-size:14px;align-items:baseline;
font-variant-numeric:tabular-nums}
dt{color:var(--soft)}dd{margin:0}
.meter{height:6px;border-radius:3px;background:var(--rule);margin-top:4px;overflow:hidden}
.meter i{display:block;height:100%;background:var(--bar)}
.meter.warn i{background:var(--warn)}
.empty{color:var(--soft);margin:0}
footer{border-top:1px solid var(--rule);margin-top:40px;padding-top:10px;font-size:13px;color:var(--soft);
display:flex;flex-wrap:wrap;gap:4px 18px}
@media (max-width:860px){.tiles{grid-template-columns:repeat(3,minmax(0,1fr))}}
@media (max-width:640px){main{padding:20px 16px 36px}h1{font-size:23px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile{padding:8px 12px}.tile b{font-size:20px}
.cols{grid-template-columns:minmax(0,1fr)}.keys{order:3;flex-basis:100%}
thead{display:none}table,tbody{display:block}
tr{display:grid;grid-template-columns:1fr 1fr;gap:5px 16px;padding:11px 0;border-bottom:1px solid var(--rule)}
tr:first-child{border-top:1px solid var(--rule)}
td,td.n{display:block;border:0;padding:0;text-align:left}
td.wide{grid-column:1/-1}
td[data-name]::before{content:attr(data-name);display:block;font-size:12px;color:var(--soft)}}
@media print{.chip{print-color-adjust:exact}tr{break-inside:avoid}}
)css";

}  // namespace kvbridge::server
