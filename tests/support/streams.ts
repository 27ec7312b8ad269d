import http from 'node:http'

export interface Streamed {
  status: number
  headers: http.IncomingHttpHeaders
  /** The data of each event, in order, without `[DONE]`. */
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
  events: any[]
  done: boolean
  /** Whether any byte of the answer came. */
  began: boolean
  text: string
}

export interface Streaming {
  /** Resolves with what came, when the stream has ended, however it did. */
  whole: Promise<Streamed>
  /** Resolves when so many bytes have come. */
  until(bytes: number): Promise<void>
  leave(): void
}

/** Posts a body and reads the answer as it comes. `read: false` leaves it in the socket. */
export function stream(url: string, key: string, body: object, { read = true } = {}): Streaming {
  const request = http.request(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    agent: false,
  })
  let text = ''
  const waiting: { bytes: number; resolve: () => void }[] = []
  let over: () => void = () => {}
  const whole = new Promise<Streamed>((resolve, reject) => {
    request.on('error', (error) => (text === '' ? reject(error) : over()))
    request.on('response', (response) => {
      over = () =>
        resolve({
          status: response.statusCode!,
          headers: response.headers,
          began: text !== '',
          text,
          ...eventsOf(text),
        })
      if (!read) return
      response.setEncoding('utf8')
      response.on('data', (piece) => {
        text += piece
        for (const each of waiting.filter(({ bytes }) => text.length >= bytes)) each.resolve()
      })
      response.on('end', over).on('error', over).on('close', over)
    })
  })
  whole.catch(() => {})
  request.end(JSON.stringify(body))
  return {
    whole,
    until: (bytes) =>
      Promise.race([
        new Promise<void>((resolve) => (text.length >= bytes ? resolve() : waiting.push({ bytes, resolve }))),
        whole.then((all) => {
          if (all.text.length < bytes)
            throw new Error(`the stream ended after ${all.text.length} bytes: ${all.text.slice(0, 500)}`)
        }),
      ]),
    leave: () => request.destroy(),
  }
}

function eventsOf(text: string) {
  const data = text
    .split('\n\n')
    .filter((frame) => frame.startsWith('data: '))
    .map((frame) => frame.slice('data: '.length))
  const json = data.filter((each) => each.startsWith('{') && each.endsWith('}'))
  return { done: data.at(-1) === '[DONE]', events: json.map((each) => JSON.parse(each)) }
}
