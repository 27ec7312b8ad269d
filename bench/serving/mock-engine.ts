// An engine that answers at once with constant text, to measure only the gateway in front of it: `node mock-engine.ts`.
// Prints its address and ends with its stdin.
import http from 'node:http'
import type { AddressInfo } from 'node:net'

const answer = (model: string) => ({
  id: 'chatcmpl-mock',
  object: 'chat.completion',
  created: Math.floor(Date.now() / 1000),
  model,
  choices: [
    {
      index: 0,
      message: { role: 'assistant', content: 'Hello there.', refusal: null },
      logprobs: null,
      finish_reason: 'stop',
    },
  ],
  usage: { prompt_tokens: 10, completion_tokens: 3, total_tokens: 13 },
})

const server = http.createServer((request, response) => {
  const json = (body: object) => {
    const text = JSON.stringify(body)
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }).end(text)
  }
  if (request.method === 'GET')
    return json(
      request.url?.endsWith('/models') ? { object: 'list', data: [{ id: 'mock', object: 'model' }] } : { status: 'ok' },
    )
  const parts: Buffer[] = []
  request.on('data', (part) => parts.push(part))
  request.on('end', () => {
    const { model, stream } = JSON.parse(Buffer.concat(parts).toString())
    const { choices, usage, ...head } = answer(model)
    if (!stream) return json({ ...head, choices, usage })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const event = (body: object) =>
      response.write(`data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', ...body })}\n\n`)
    event({ choices: [{ index: 0, delta: { role: 'assistant', content: 'Hello there.' }, finish_reason: null }] })
    event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
    event({ choices: [], usage })
    response.end('data: [DONE]\n\n')
  })
})
server.keepAliveTimeout = 60_000
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))
process.stdin.on('end', () => process.exit(0)).resume()
