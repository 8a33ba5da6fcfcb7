"""What an encoder has computed before: by content, never by time or place.

Finished conditioning lies in `conditioning_store`, in memory and in a folder; states of shared beginnings in
`prefixes`. Both are keyed by what went in: the weights, how they compute, the tokens and the pixels.
"""
