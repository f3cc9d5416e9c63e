# The page that `mgwfbp report` writes: HTML, style and script of src/web, and the planner compiled to
# WebAssembly where clang, lld and wasi-libc are there. All are put into the library as they are.

set(web ${CMAKE_CURRENT_SOURCE_DIR}/web)
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
set(web_scripts format.js dom.js planner.js chart.js painter.js spans.js timeline.js sections.js sections_answer.js
  sections_cluster.js sections_advice.js sections_outlook.js sections_measured.js whatif.js drop.js page.js)
list(TRANSFORM web_scripts PREPEND ${web}/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${web_scripts} ${web}/style.css)

# The scripts become one; the page allows only what has the hashes of its own script and style.
set(script "\"use strict\";\n(() => {\n")
foreach(path ${web_scripts})
  file(READ ${path} one)
  string(APPEND script "${one}")
endforeach()
string(APPEND script "})();\n")
file(READ ${web}/style.css style)

# "sha256-" and the hash in base 64, as browsers want it: three bytes make four digits.
function(web_hash content out)
  set(digits ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(SHA256 hash "${content}")
  set(made "sha256-")
  foreach(at RANGE 0 60 6)
    string(SUBSTRING "${hash}0000" ${at} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING ${digits} ${digit} 1 one)
      string(APPEND made ${one})
    endforeach()
  endforeach()
  string(SUBSTRING ${made} 0 50 made) # 32 bytes are 43 digits and a sign for what is missing
  set(${out} "${made}=" PARENT_SCOPE)
endfunction()

web_hash("${script}" script_hash)
web_hash("${style}" style_hash)
file(WRITE ${generated}/page.js.new "${script}")
file(COPY_FILE ${generated}/page.js.new ${generated}/page.js ONLY_IF_DIFFERENT)
file(CONFIGURE OUTPUT ${generated}/web/hashes.h CONTENT
"#define MGW_WEB_SCRIPT_HASH \"@script_hash@\"
#define MGW_WEB_STYLE_HASH \"@style_hash@\"
" @ONLY)

# ---- The planner ----

set(wasm_flags --target=wasm32-wasi -mexec-model=reactor -O2 -std=c11 -Wall -Wextra -Werror
  -Wno-unused-command-line-argument -Wl,--strip-all -Wl,-z,stack-size=262144)
set(planner ${generated}/planner.wasm)
set(wasm_works 1)
if(MGWFBP_WASM)
  find_program(MGWFBP_WASM_CLANG NAMES clang-14 clang clang-19 clang-18 clang-17 clang-16 clang-15)
  if(MGWFBP_WASM_CLANG)
    file(WRITE ${generated}/wasm_try.c "#include <math.h>\ndouble f(double x);\ndouble f(double x) { return log2(x); }\n")
    execute_process(
      COMMAND ${MGWFBP_WASM_CLANG} ${wasm_flags} -Wl,--export=f ${generated}/wasm_try.c -o ${generated}/wasm_try.wasm
      RESULT_VARIABLE wasm_works OUTPUT_QUIET ERROR_QUIET)
  endif()
endif()
if(wasm_works EQUAL 0)
  set(planner_sources
    base/dtype.c base/locale.c base/names.c base/status.c base/text.c base/units.c base/utf8.c trace/trace.c
    cluster/algorithm.c cluster/cluster.c cluster/cost.c cluster/fit.c cluster/kinds.c cluster/levels.c cluster/wire.c
    plan/beside.c plan/beside_search.c plan/bound.c plan/channels.c plan/fixed.c plan/forward.c plan/greedy.c plan/optimal.c plan/optimal_curve.c plan/overlap.c plan/overlap_layers.c plan/overlap_line.c plan/overlap_order.c plan/peers.c plan/plan.c plan/policy.c plan/problem.c plan/sequence.c
    plan/threshold.c sim/failures.c sim/outlook.c sim/scaling.c sim/simulate.c sim/straggle.c timeline/timeline.c report/case.c web/planner.c)
  list(TRANSFORM planner_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  file(GLOB_RECURSE planner_headers ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${PROJECT_SOURCE_DIR}/include/*.h)
  add_custom_command(OUTPUT ${planner}
    COMMAND ${MGWFBP_WASM_CLANG} ${wasm_flags} -D_GNU_SOURCE -I${PROJECT_SOURCE_DIR}/include
      -I${CMAKE_CURRENT_SOURCE_DIR} -I${generated} ${planner_sources} -o ${planner}
    DEPENDS ${planner_sources} ${planner_headers} ${version_header} VERBATIM
    COMMENT "Compiling the planner to WebAssembly")
else()
  message(STATUS "No compiler for WebAssembly: pages will show what was planned, and cannot plan "
    "(clang-14, lld-14, wasi-libc and libclang-rt-14-dev-wasm32 would do)")
  file(WRITE ${planner} "")
endif()

file(CONFIGURE OUTPUT ${generated}/web.S CONTENT
"/* The page and its parts, byte by byte. */
.macro embed name, path
.globl mgw_web_\\name
.hidden mgw_web_\\name
.globl mgw_web_\\name\\()_end
.hidden mgw_web_\\name\\()_end
mgw_web_\\name: .incbin \"\\path\"
mgw_web_\\name\\()_end: .byte 0
.endm
.section .rodata
embed page, \"@web@/page.html\"
embed style, \"@web@/style.css\"
embed script, \"@generated@/page.js\"
embed planner, \"@planner@\"
.section .note.GNU-stack,\"\",%progbits
" @ONLY)
set_source_files_properties(${generated}/web.S PROPERTIES OBJECT_DEPENDS
  "${web}/page.html;${web}/style.css;${generated}/page.js;${planner}")
set(web_sources ${generated}/web.S)
