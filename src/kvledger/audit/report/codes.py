"""What each finding means, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.audit.findings import Code

MEANINGS: Mapping[Code, str] = {
    Code.VOLATILE_PREFIX: "Text near the start of the prompt differs with every request: all behind it is lost.",
    Code.TOOLS_REORDERED: "The same tools come in another order.",
    Code.TOOLS_CHANGED: "The list of tools, or the text of one, changes between requests.",
    Code.EXAMPLES_REORDERED: "The same examples come in another order.",
    Code.KEY_ORDER_CHANGED: "The same JSON is written with its keys in another order.",
    Code.HISTORY_REWRITTEN: "Earlier messages of a conversation are cut, compacted or assembled anew.",
    Code.MODEL_SWITCHED: "A conversation goes on with another model, whose cache is its own.",
    Code.PARAMS_CHANGED: "A parameter that the cache depends on changes between requests.",
    Code.MARK_MISSING: "The provider caches only what is marked, and nothing is.",
    Code.MARK_ON_CHANGING_CONTENT: "A cache mark stands behind text that differs with every request.",
    Code.LOOKBACK_EXCEEDED: "The last entry lies further back than the provider looks from a mark.",
    Code.BELOW_MINIMUM: "The prompt, or what is marked of it, is shorter than the provider caches.",
    Code.TTL_EXPIRED: "The entry's lifetime ended before the next request came.",
    Code.WRITE_NEVER_READ: "Writes are paid for that no later request reads.",
    Code.PARALLEL_FAN_OUT: "Requests with one beginning start together, before the first has written it.",
    Code.ISOLATED: "The same text is sent under keys that share no cache.",
    Code.IMPLICIT_BREAKPOINT_ON_SUFFIX: "The provider's own breakpoint lies behind text that never comes again.",
    Code.BATCH_POSSIBLE: "Requests that nobody waits for pay the full price.",
    Code.NOT_WORTH_CACHING: "Caching costs more here than it saves.",
    Code.UNEXPLAINED: "The rules say that it should have been read, and nothing in the log says why it was not.",
}
