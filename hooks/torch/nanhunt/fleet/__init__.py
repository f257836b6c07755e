# SPDX-License-Identifier: Apache-2.0
"""The records of many ranks as Parquet tables, for DuckDB, Polars, Spark and whatever else reads them.

    from nanhunt.fleet import make_tables, ranks_of, rank_part, merge_group

`make_tables` does all of it. What it is made of can be handed out by others: `rank_part` is the work of one rank, and
`merge_group` that of one group of ranks once their parts are there. Knows nothing of torch.
"""
from nanhunt.fleet.engines import Engine, LocalEngine, RayEngine
from nanhunt.fleet.tables import TABLES, Rank, TableError, merge_group, rank_part, ranks_of
from nanhunt.fleet.work import make_tables

__all__ = ["TABLES", "Engine", "LocalEngine", "Rank", "RayEngine", "TableError", "make_tables", "merge_group",
           "rank_part", "ranks_of"]
