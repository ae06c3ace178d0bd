"""Receipts on their way to the ledger: a queue and a thread that commits what has gathered in it, in batches."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from kvledger.errors import LedgerConflictError, LedgerError
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import Ledger


class LedgerWriter:
    """Commits receipts in its own thread, so that no request and no decode step waits for the disk.

    **When a response may end.** A receipt is safe once its future is done without an exception: then its transaction
    is committed and on the disk. A response must not send its last byte (the end of the body, or of the stream) before
    that: `await writer.record(receipt)`, then end. Whoever got a whole answer therefore has a receipt, whatever happens
    to the server next; a client that went away early has nothing to wait for, and its receipt is only submitted.

    While one batch is committed the next gathers, so batches grow with the load, and alone a receipt waits for one
    commit. Nothing is dropped: if a commit fails, the futures of its receipts raise `LedgerError`.
    """

    def __init__(self, ledger: Ledger, *, capacity: int = 4096, batch: int = 512) -> None:
        """`capacity` receipts may wait, `batch` go into one transaction."""
        self._ledger = ledger
        self._capacity = capacity
        self._batch = batch
        self._state = threading.Condition()
        self._waiting: deque[tuple[Receipt, Future[None]]] = deque()
        self._submitted = self._tried = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvledger-ledger", daemon=True)
        self._thread.start()

    def submit(self, receipt: Receipt) -> Future[None]:
        """Hand a receipt over; the future is done when it is safe. Blocks while the queue is full."""
        with self._state:
            self._state.wait_for(lambda: self._closed or len(self._waiting) < self._capacity)
            return self._append(receipt)

    async def record(self, receipt: Receipt) -> None:
        """Hand a receipt over and wait until it is safe, without holding up the event loop.

        If the waiting task is cancelled the receipt is committed all the same.
        """
        with self._state:
            is_full = len(self._waiting) >= self._capacity
            future = None if is_full else self._append(receipt)
        if future is None:
            future = await asyncio.shield(asyncio.to_thread(self.submit, receipt))
        await asyncio.shield(asyncio.wrap_future(future))

    def flush(self) -> None:
        """Wait until everything handed over before this call was tried. Raises nothing: the futures say how it went."""
        with self._state:
            wanted = self._submitted
            self._state.wait_for(lambda: self._tried >= wanted)

    def close(self) -> None:
        """Commit what waits and end the thread; later receipts are refused. The ledger stays open."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join()

    def _append(self, receipt: Receipt) -> Future[None]:
        if self._closed:
            raise LedgerError("The ledger is closed: no more receipts can be written.")
        future: Future[None] = Future()
        # It is running from here on: whoever waits for it can stop waiting, but not take the receipt back.
        future.set_running_or_notify_cancel()
        self._waiting.append((receipt, future))
        self._submitted += 1
        self._state.notify_all()
        return future

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closed or self._waiting)
                batch = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
                self._state.notify_all()
            if not batch:
                return
            self._commit(batch)
            with self._state:
                self._tried += len(batch)
                self._state.notify_all()

    def _commit(self, batch: list[tuple[Receipt, Future[None]]]) -> None:
        try:
            self._ledger.append([receipt for receipt, _ in batch])
        except Exception as error:  # whatever it is, whoever waits must learn of it, and the thread goes on
            if isinstance(error, LedgerConflictError) and len(batch) > 1:
                # One receipt contradicts the ledger: the others are none the worse for it.
                for one in batch:
                    self._commit([one])
                return
            for _, future in batch:
                future.set_exception(error)
        else:
            for _, future in batch:
                future.set_result(None)
