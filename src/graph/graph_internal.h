/* graph_internal.h - shared by the files of graph/ only. */
#ifndef MS_GRAPH_GRAPH_INTERNAL_H
#define MS_GRAPH_GRAPH_INTERNAL_H

#include "graph/graph.h"

extern const ms_op ms__op_accumulate;

#endif
