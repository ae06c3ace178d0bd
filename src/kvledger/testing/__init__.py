"""Tests of programs that call providers: an emulator of their caches and bills, and assertions about them."""
