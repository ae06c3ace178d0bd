"""How fast an audit is: N requests of many messages each, made as a log is read, through rules and findings.

    python benchmarks/audit_speed.py --requests 20000 --messages 30

Prints one JSON object: requests a second of the audit alone and with decoding each body from JSON, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator

import msgspec

from kvledger.audit.audit import Options, audit
from kvledger.audit.record import Record, Source
from kvledger.clock import SystemClock
from kvledger.ledger.prices import Prices

START = 1_795_000_000.0
LEAD = 14
"""Messages of a conversation's first request; each later one adds a question and an answer, up to the number asked for
and as many again."""


def message(conversation: int, number: int, size: int) -> dict[str, str]:
    """A text of its own for every message, as long as asked for."""
    text = f"conversation {conversation} message {number}: " + "lorem ipsum dolor sit amet " * (size // 27)
    return {"role": "user" if number % 2 == 0 else "assistant", "content": text}


def bodies(requests: int, messages: int, size: int, model: str, interleaved: int) -> Iterator[tuple[int, bytes]]:
    """Bodies as JSON with the number of their conversation. Requests have `messages` messages on average and
    conversations take turns, `interleaved` at a time."""
    system = "You are a careful assistant. " * (4000 // 29)
    turns = messages // 2
    first = messages - turns
    made = base = 0
    while made < requests:
        for turn in range(turns):
            for conversation in range(base, base + interleaved):
                if made == requests:
                    return
                said = [message(conversation, number, size) for number in range(first + 2 * turn + (first + 1) % 2)]
                body = {"model": model, "max_tokens": 512, "system": system, "messages": said}
                if not model.startswith("claude"):
                    del body["system"]
                    body["messages"] = [{"role": "system", "content": system}, *said]
                else:
                    body["cache_control"] = {"type": "ephemeral"}
                yield conversation, msgspec.json.encode(body)
                made += 1
        base += interleaved


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--characters", type=int, default=1_300, help="of each message")
    parser.add_argument("--model", default="claude-sonnet-4-6")
    parser.add_argument("--interleaved", type=int, default=20, help="conversations that take turns")
    parser.add_argument("--broken", action="store_true", help="with a clock at the start of every system text")
    args = parser.parse_args()
    clock = SystemClock()
    provider, api = ("anthropic", "messages") if args.model.startswith("claude") else ("openai", "chat")
    making, made = [0.0], [time.process_time()]
    sizes = [0]

    def log() -> Iterator[Record]:
        source = iter(bodies(args.requests, args.messages, args.characters, args.model, args.interleaved))
        number = 0
        while True:
            begun, worked = clock.monotonic(), time.process_time()
            item = next(source, None)
            making[0] += clock.monotonic() - begun
            made[0] += time.process_time() - worked
            if item is None:
                return
            _, raw = item
            sizes[0] += len(raw)
            body = msgspec.json.decode(raw)
            if args.broken and provider == "anthropic":
                body["system"] = f"Now: {number}. {body['system']}"
            at = START + number * 0.5
            yield Record(Source("log", number + 1), provider, api, args.model, id=str(number), at=at, body=body)
            number += 1

    begun = clock.monotonic()
    result = audit(log(), prices=Prices(), options=Options(assumed_at=START, what_if=False))
    seconds = clock.monotonic() - begun - making[0]
    processor = time.process_time() - made[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures = {
        "requests": result.requests,
        "gigabytes_of_json": round(sizes[0] / 1e9, 3),
        "requests_per_second": round(result.requests / seconds, 1),
        "seconds": round(seconds, 2),
        "requests_per_second_of_processor": round(result.requests / processor, 1),
        "peak_memory_mb": peak,
        "hit_rate_by_rules": result.rules.hit_rate,
        "findings": [f"{each.code.value} {each.requests}" for each in result.findings],
    }
    json.dump(figures, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
