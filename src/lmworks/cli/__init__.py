"""The command line: a lazy front door (`main`) and one small file per command."""
