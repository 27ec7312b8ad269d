// Reads the two kinds of streams: server-sent events and JSON lines.

/** The lines of a body, without their ends. Cancels the body when the reader leaves early. */
async function* linesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  let ended = false
  try {
    for (;;) {
      const { done, value } = await reader.read()
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true })
      const lines = rest.split('\n')
      // The last piece is a line only once the body has ended.
      rest = lines.pop()!
      for (const line of lines) yield line.endsWith('\r') ? line.slice(0, -1) : line
      if (done) {
        ended = true
        if (rest) yield rest
        return
      }
    }
  } finally {
    if (!ended) await reader.cancel().catch(() => {})
    reader.releaseLock()
  }
}

/** The JSON of each line; blank lines, which keep the connection alive, are skipped. */
export async function* jsonLines<T>(body: ReadableStream<Uint8Array>): AsyncGenerator<T, void, undefined> {
  for await (const line of linesOf(body)) if (line.trim() !== '') yield JSON.parse(line) as T
}

/** The JSON of each server-sent event until `[DONE]`. */
export async function* serverSentEvents<T>(body: ReadableStream<Uint8Array>): AsyncGenerator<T, void, undefined> {
  let data: string[] = []
  for await (const line of linesOf(body)) {
    if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5))
    else if (line === '' && data.length > 0) {
      const text = data.join('\n')
      data = []
      if (text === '[DONE]') return
      yield JSON.parse(text) as T
    }
  }
}
