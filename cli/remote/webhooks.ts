// `webhooks`: listen to events on this machine; list and delete webhooks.
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { isTuneryError, type NewWebhook, verifyWebhook, WebhookVerificationError } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { note, show, showList } from '../support/output.ts'
import { type Connection, connect } from '../support/service.ts'
import { clean, paint, time } from '../support/text.ts'
import { all } from './lists.ts'
import { confirmDeletion } from './models.ts'

/** Bodies of events are far smaller. */
const bodyMax_bytes = 1_000_000
/** The service waits 15 s for an answer. */
const forward_ms = 14_000

interface ListenOptions extends GlobalOptions {
  events?: string
  forward?: string
  port: number
  publicUrl?: string
}

export function addWebhookCommands(program: Program): void {
  const webhooks = program.command('webhooks').description('events that the service posts')
  runs(
    webhooks
      .command('listen')
      .description(
        'receive events here until Ctrl-C: verify, print and forward them; the webhook is deleted at the end',
      )
      .option('--events <types>', 'with commas; default: all. docs/reference/events.md lists them')
      .option('--forward <url>', 'post each event there too, with its original headers')
      .option('--port <port>', 'port to listen on; 0 picks a free one', wholeNumber('--port', 0, 65_535), 0)
      .option('--public-url <url>', 'address of a tunnel that leads to the port, if the service is on another machine'),
    listen,
  )
  runs(webhooks.command('list').description('list the webhooks'), list)
  runs(
    webhooks.command('test').description('send an event webhook.test to a webhook').argument('<webhook>', 'its id'),
    async (id: string, options: GlobalOptions) => {
      const delivery = await connect(options).tunery.webhooks.test(id)
      show(options, delivery, `A test is on its way to ${id}.`)
    },
  )
  runs(
    webhooks
      .command('delete')
      .description('delete a webhook with its deliveries')
      .argument('<webhook>', 'its id')
      .option('-y, --yes', 'do not ask'),
    async (id: string, options: GlobalOptions & { yes?: boolean }) => {
      const { tunery } = connect(options)
      await confirmDeletion(id, options)
      show(options, await tunery.webhooks.delete(id), `${id} is deleted.`)
    },
  )
}

async function listen(options: ListenOptions): Promise<void> {
  const { forward, publicUrl } = options
  for (const url of [forward, publicUrl])
    if (url !== undefined && !/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : ''))
      throw new UsageError(`'${url}' is not an address. It is like http://127.0.0.1:3000/hooks.`)
  const connection = connect(options)
  const events = await eventsOf(options)
  let webhook: NewWebhook | undefined
  const server = http.createServer((request, response) => {
    receive(request, options, () => webhook?.secret)
      .then(({ status, body }) => response.writeHead(status).end(body))
      .catch(() => response.writeHead(500).end())
  })
  await new Promise<void>((resolve, reject) =>
    server
      .once('error', (error: NodeJS.ErrnoException) =>
        reject(new UsageError(`Port ${options.port} cannot be listened on: ${error.message}. Give another --port.`)),
      )
      .listen(options.port, '127.0.0.1', resolve),
  )
  const local = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const stopped = new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve())
  })
  try {
    webhook = await register(connection, publicUrl ?? local, events, publicUrl === undefined)
    note(
      `${webhook.id} sends ${events.length === 1 ? events[0] : `${events.length} types of events`} to ` +
        `${local}${publicUrl === undefined ? '' : ` through ${publicUrl}`}` +
        `${forward ? `, forwarded to ${forward}` : ''}. Ctrl-C ends it.`,
    )
    await stopped
  } finally {
    server.close()
    server.closeAllConnections()
    if (webhook)
      await connection.tunery.webhooks.delete(webhook.id).catch((error: Error) => {
        note(
          `${webhook!.id} could not be deleted: ${error.message} '${typed(`webhooks delete ${webhook!.id}`)}' does it.`,
        )
      })
  }
}

type EventType = NewWebhook['events'][number]

async function eventsOf({ events }: ListenOptions): Promise<EventType[]> {
  if (events !== undefined) return events.split(',').map((type) => type.trim()) as EventType[]
  const { webhookEventTypes } = await import('../../contract/webhooks.ts')
  return [...webhookEventTypes]
}

async function register(
  { tunery }: Connection,
  url: string,
  events: EventType[],
  isLocal: boolean,
): Promise<NewWebhook> {
  try {
    return await tunery.webhooks.create({ url, events })
  } catch (error) {
    if (!isLocal || !isTuneryError(error, 'address_blocked')) throw error
    throw new UsageError(
      `The service may not post to ${url}. If it runs on this machine, start it with ` +
        `TUNERY_WEBHOOK_ALLOW=127.0.0.0/8. If it is elsewhere, open a tunnel to a port of this machine and give ` +
        `--port and its address as --public-url.`,
    )
  }
}

async function receive(
  request: http.IncomingMessage,
  options: ListenOptions,
  secretOf: () => string | undefined,
): Promise<{ status: number; body: string }> {
  const parts: Buffer[] = []
  let size = 0
  for await (const part of request as AsyncIterable<Buffer>) {
    size += part.length
    if (size > bodyMax_bytes) return { status: 413, body: '' }
    parts.push(part)
  }
  const body = Buffer.concat(parts)
  const secret = secretOf()
  if (secret === undefined) return { status: 503, body: '' }
  try {
    const event = await verifyWebhook(body, request.headers, secret)
    const forwarded = options.forward === undefined ? undefined : await forwardTo(options.forward, request, body)
    if (options.json) console.log(JSON.stringify(event))
    else {
      const head = `${paint('dim', time(event.created_at))}  ${paint('bold', clean(event.type))}`
      const outcome = forwarded && paint(forwarded.status < 300 ? 'green' : 'red', `  → ${forwarded.text}`)
      console.log(`${head}  ${clean(JSON.stringify(event.data))}${outcome ?? ''}`)
    }
    // The service tries again what the other address has not taken.
    return { status: forwarded?.status ?? 200, body: '' }
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error
    note(`A request was refused: ${error.message}`)
    return { status: 401, body: '' }
  }
}

async function forwardTo(url: string, { headers }: http.IncomingMessage, body: Buffer<ArrayBuffer>) {
  const sent = new Headers()
  for (const [name, value] of Object.entries(headers))
    if (!['host', 'connection', 'content-length', 'transfer-encoding'].includes(name)) sent.set(name, String(value))
  try {
    const response = await fetch(url, { method: 'POST', headers: sent, body, signal: AbortSignal.timeout(forward_ms) })
    await response.body?.cancel()
    return { status: response.status, text: String(response.status) }
  } catch (error) {
    return { status: 502, text: (error as { cause?: Error }).cause?.message ?? (error as Error).message }
  }
}

async function list(options: GlobalOptions): Promise<void> {
  showList(
    options,
    await all(connect(options).tunery.webhooks.list({ limit: 100 })),
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'address', value: ({ url }) => url, flexible: true },
      { head: 'events', value: ({ events }) => String(events.length), right: true },
      { head: 'status', value: ({ status, failing_since }) => (failing_since ? `${status}, failing` : status) },
      { head: 'created', value: ({ created_at }) => time(created_at) },
    ],
    { empty: `There are no webhooks. '${typed('webhooks listen')}' receives events here.` },
  )
}
