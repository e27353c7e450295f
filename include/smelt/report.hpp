// SPDX-License-Identifier: Apache-2.0
//
// What a program shows of a run: tables, a progress line, figures, files that are whole or not
// there. The only room that knows fmt; nothing else of the library includes it.
#pragma once

#include "smelt/report/figure.hpp"
#include "smelt/report/output_file.hpp"
#include "smelt/report/progress.hpp"
#include "smelt/report/quantity.hpp"
#include "smelt/report/table.hpp"
