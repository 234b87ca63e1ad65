// The style sheet of a report. Colours are variables, so that drawings follow the theme.
#pragma once

namespace kvbridge::cli {

inline constexpr char kReportStyle[] = R"css(
:root{color-scheme:light dark;--bg:#fcfbf8;--ink:#1c2024;--soft:#5b626a;--rule:#dcd8cf;--card:#f3f0e9;
--held:#1b7a46;--broken:#b3261e;--open:#8a5a00;--heat:#1f5aa8;--on:#fff;
--s0:#1f5aa8;--s1:#b4530a;--s2:#1b7a5a;--s3:#8a3f8f;--s4:#a12b4b;--s5:#5a6b00;--sg:#767d85}
@media (prefers-color-scheme:dark){:root{--bg:#15181b;--ink:#e8e6e1;--soft:#a3a9b0;--rule:#343a40;--card:#1e2327;
--held:#62c48e;--broken:#f2877d;--open:#e0b04c;--heat:#6fa8ee;--on:#10131a;
--s0:#7ab0f2;--s1:#f0a05a;--s2:#6ccfa6;--s3:#d39ad8;--s4:#f08fa8;--s5:#c3d36a;--sg:#8d949c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans","Liberation Sans",sans-serif}
main{max-width:1100px;margin:0 auto;padding:40px 28px 72px}
h1,h2,h3,h4{line-height:1.2;font-weight:650;text-wrap:balance;overflow-wrap:anywhere}
h1{font-size:34px;letter-spacing:-.015em;margin:2px 0 10px}
h2{font-size:26px;letter-spacing:-.01em;margin:64px 0 10px;padding-top:22px;border-top:2px solid var(--ink)}
h3{font-size:20px;margin:46px 0 6px}
h4{font-size:16px;margin:30px 0 4px}
h1 .to,h2 .to{color:var(--soft);font-weight:400}
p{margin:6px 0 14px;max-width:46em}
.eyebrow{font-size:13px;letter-spacing:.08em;text-transform:uppercase;color:var(--soft);margin:0}
.lead{font-size:18px}
.small,.foot{font-size:13px;color:var(--soft)}
.foot{border-top:1px solid var(--rule);margin-top:56px;padding-top:12px}
.hash{font:13px/1.4 ui-monospace,"DejaVu Sans Mono",monospace;color:var(--soft);overflow-wrap:anywhere}
.chip{display:inline-block;padding:3px 12px 3px 10px;border:1.5px solid currentColor;border-radius:99px;
font-size:14px;font-weight:650;letter-spacing:.03em;white-space:nowrap}
td .chip{padding:0 9px 0 7px;font-size:12px}
.held{color:var(--held)}.broken{color:var(--broken)}.open{color:var(--open)}
td b{white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0 8px}
.tile{background:var(--card);border-radius:8px;padding:12px 16px 13px;display:flex;flex-direction:column}
.tile .name,.tile .note{font-size:13px;color:var(--soft)}
.tile .big{font-size:25px;line-height:1.35;font-weight:620;letter-spacing:-.01em;font-variant-numeric:tabular-nums;white-space:nowrap}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,316px),1fr));gap:24px 32px;margin:16px 0 22px;align-items:start}
.row.two{grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr))}
figure{margin:0;min-width:0;break-inside:avoid}
figcaption{font-size:14px;font-weight:600;margin:0 0 4px}
svg{display:block;width:100%;height:auto;overflow:visible;font-size:11.5px}
svg text{fill:var(--ink);font-variant-numeric:tabular-nums}
svg .tick,svg .name,svg .range{fill:var(--soft)}
svg .tick,svg .range{font-size:10.5px}
svg .label{font-weight:600}svg .label.faint{font-weight:400}
svg .value{font-weight:600}
svg .cell{font-size:10.5px}svg .cell.dark{fill:var(--on)}
.grid{stroke:var(--rule);stroke-width:1}.zero{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:4 3;stroke-width:1.3}
.whisker{stroke-width:1.6;opacity:.55}.hollow{opacity:.5}
.heat{fill:var(--heat)}.spot{fill:var(--s1)}.mark{fill:none;stroke:var(--ink);stroke-width:1.6}
.line.s0,.whisker.s0{stroke:var(--s0)}.dot.s0,svg .label.s0{fill:var(--s0)}
.line.s1,.whisker.s1{stroke:var(--s1)}.dot.s1,svg .label.s1{fill:var(--s1)}
.line.s2,.whisker.s2{stroke:var(--s2)}.dot.s2,svg .label.s2{fill:var(--s2)}
.line.s3,.whisker.s3{stroke:var(--s3)}.dot.s3,svg .label.s3{fill:var(--s3)}
.line.s4,.whisker.s4{stroke:var(--s4)}.dot.s4,svg .label.s4{fill:var(--s4)}
.line.s5,.whisker.s5{stroke:var(--s5)}.dot.s5,svg .label.s5{fill:var(--s5)}
.line.sg,.whisker.sg{stroke:var(--sg)}.dot.sg{fill:var(--sg)}svg .label.sg{fill:var(--soft);font-weight:400}
.scroll{overflow-x:auto;margin:10px 0 18px;
background:linear-gradient(90deg,var(--bg) 50%,transparent) left/40px 100% no-repeat local,
linear-gradient(270deg,var(--bg) 50%,transparent) right/40px 100% no-repeat local,
linear-gradient(90deg,var(--rule),transparent) left/12px 100% no-repeat scroll,
linear-gradient(270deg,var(--rule),transparent) right/12px 100% no-repeat scroll}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:6px 18px 6px 0;text-align:right;vertical-align:baseline;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft);font-size:13px}
th:first-child,td:first-child,.text th,.text td{text-align:left}
td:last-child,th:last-child{padding-right:0}
ul{margin:6px 0 14px;padding-left:1.2em}
td i,td small{font-style:normal;color:var(--soft);font-size:12.5px}
details{border-top:1px solid var(--rule)}details:last-of-type{border-bottom:1px solid var(--rule)}
summary{padding:8px 0;cursor:pointer;font-size:14px}
:focus-visible{outline:2px solid var(--heat);outline-offset:2px}
dl{display:grid;grid-template-columns:minmax(9em,auto) minmax(0,1fr);gap:4px 24px;font-size:13.5px;margin:10px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:13px ui-monospace,"DejaVu Sans Mono",monospace}
@media (max-width:600px){main{padding:24px 16px 48px}h1{font-size:26px}h2{font-size:22px}.lead{font-size:16.5px}
.tiles{grid-template-columns:1fr 1fr}.tile{padding:10px 12px}.tile .big{font-size:21px}
.tile:last-child:nth-child(odd){grid-column:1/-1}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}}
@media print{:root{--bg:#fff;--card:#f6f6f6}body{font-size:10.5pt}main{max-width:none;padding:0}
h2{break-before:page;border-top:0}h3,h4{break-after:avoid}.scroll{overflow:visible}th,td{padding-right:10px}
.row{grid-template-columns:1fr 1fr}tr{break-inside:avoid}*{print-color-adjust:exact}}
)css";

}  // namespace kvbridge::cli
