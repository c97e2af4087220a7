"""Reading a cluster: the batch reader and the stream reader, and their plans."""
