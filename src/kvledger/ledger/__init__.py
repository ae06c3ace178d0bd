"""Receipts and money: what a request used, what that costs, and the durable record of both."""
