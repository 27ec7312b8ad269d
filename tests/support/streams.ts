import http from 'node:http'

export interface Streamed {
  status: number
  headers: http.IncomingHttpHeaders
  /** The data of each event, in order, without `[DONE]`. */
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
  events: any[]
  done: boolean
  /** Whether any byte of the body arrived. */
  hasBytes: boolean
  text: string
}

export interface Streaming {
  /** Resolves with everything received when the stream ends or breaks. */
  result: Promise<Streamed>
  /** Resolves when this many bytes have arrived. */
  untilBytes(bytes: number): Promise<void>
  hangUp(): void
}

/** Posts a body and reads the response as it arrives. `read: false` leaves it in the socket. */
export function stream(url: string, key: string, body: object, { read = true } = {}): Streaming {
  const request = http.request(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    agent: false,
  })
  let text = ''
  const waiting: { bytes: number; resolve: () => void }[] = []
  let onEnd: () => void = () => {}
  const result = new Promise<Streamed>((resolve, reject) => {
    request.on('error', (error) => (text === '' ? reject(error) : onEnd()))
    request.on('response', (response) => {
      onEnd = () =>
        resolve({
          status: response.statusCode!,
          headers: response.headers,
          hasBytes: text !== '',
          text,
          ...eventsOf(text),
        })
      if (!read) return
      response.setEncoding('utf8')
      response.on('data', (piece) => {
        text += piece
        for (const waiter of waiting.filter(({ bytes }) => text.length >= bytes)) waiter.resolve()
      })
      response.on('end', onEnd).on('error', onEnd).on('close', onEnd)
    })
  })
  result.catch(() => {})
  request.end(JSON.stringify(body))
  return {
    result,
    untilBytes: (bytes) =>
      Promise.race([
        new Promise<void>((resolve) => (text.length >= bytes ? resolve() : waiting.push({ bytes, resolve }))),
        result.then((all) => {
          if (all.text.length < bytes)
            throw new Error(`the stream ended after ${all.text.length} bytes: ${all.text.slice(0, 500)}`)
        }),
      ]),
    hangUp: () => request.destroy(),
  }
}

function eventsOf(text: string) {
  const data = text
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => event.slice('data: '.length))
  const json = data.filter((piece) => piece.startsWith('{') && piece.endsWith('}'))
  return { done: data.at(-1) === '[DONE]', events: json.map((piece) => JSON.parse(piece)) }
}
