// Makes the methods of the table of operations.
import { notTunery, TuneryConnectionError, TuneryError } from './errors.ts'
import { type Operations, operations } from './generated/operations.ts'
import type { ErrorBody } from './generated/types.ts'
import { backoff, type OutgoingRequest, pause, type Send } from './http.ts'
import { jsonLines, serverSentEvents } from './streams.ts'
import type { EventStream, FileInput, FileResponse, Page, PagePromise, RequestOptions } from './types.ts'

type Row = Record<string, unknown>
/** How often in a row a stream is taken up again: about a minute, in which a service restarts. */
export const streamRetries = 10
interface Table {
  [name: string]: string | Table
}

/** Every operation, as methods of their resources. */
export const createOperations = (send: Send): Operations => build(operations, send) as unknown as Operations

const build = (table: Table, send: Send): object =>
  Object.fromEntries(
    Object.entries(table).map(([name, each]) => [
      name,
      typeof each === 'string' ? methodOf(each, send) : build(each, send),
    ]),
  )

function methodOf(operation: string, send: Send) {
  const [method, pattern, ...flags] = operation.split(' ') as [string, string, ...string[]]
  const params = [...pattern.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!)
  const has = (flag: string) => flags.includes(flag)
  const filePart = flags.find((flag) => flag.startsWith('form:'))?.slice(5)
  const takesInput = has('query') || has('body')

  return (...given: unknown[]) => {
    let path = pattern
    for (const name of params) {
      const value = given.shift()
      if (typeof value !== 'string' || value === '') throw new TypeError(`${pattern} needs ${name}, a text.`)
      // Ids of models have slashes, which the service takes as they are.
      path = path.replace(`{${name}}`, value.split('/').map(encodeURIComponent).join('/'))
    }
    const request: OutgoingRequest = { method, path }
    if (filePart) request.body = formOf(filePart, given.shift() as FileInput, given.shift() as Row | undefined)
    const input = takesInput ? (given.shift() as Row | undefined) : undefined
    if (has('query') && input) request.query = input
    if (has('body')) request.body = input ?? {}
    const options = given.shift() as RequestOptions | undefined
    if (has('page')) return pages(send, request, options, 'items')
    if (has('list')) return pages(send, request, options, 'data')
    if (has('lines')) return events(send, request, options)
    if (has('file')) return send(request, options).then(fileOf)
    if (has('events') && input?.stream) return stream(send, request, options)
    return send(request, options).then(jsonOf)
  }
}

const jsonOf = (response: Response): Promise<unknown> =>
  response.json().catch(() => Promise.reject(notTunery(response)))

function formOf(part: string, file: FileInput, fields: Row = {}): FormData {
  const form = new FormData()
  for (const [name, value] of Object.entries(fields))
    if (value !== undefined && value !== null) form.set(name, String(value))
  // Fields first: the service reads the form as it comes.
  if (file instanceof Blob) form.set(part, file, (file as File).name ?? String(fields.name ?? 'file'))
  else form.set(part, new Blob([file]), String(fields.name ?? 'file'))
  return form
}

/** Where a list continues: behind the last item, by whatever numbers its items. */
const cursorOf = (item: Row | undefined) => item?.id ?? item?.row ?? item?.step

function pages(
  send: Send,
  request: OutgoingRequest,
  options: RequestOptions | undefined,
  list: 'items' | 'data',
): PagePromise<Row> {
  async function load(after: unknown): Promise<Page<Row>> {
    const query = { ...request.query, ...(after !== undefined && { after }) }
    const body = (await (await send({ ...request, query }, options)).json()) as Row
    const items = body[list] as Row[]
    const cursor = cursorOf(items.at(-1))
    const has_more = body.has_more === true
    return { items, has_more, next: () => (has_more && cursor !== undefined ? load(cursor) : undefined) }
  }
  // A promise and an iterable in one: the request is sent once, by whichever is used.
  let first: Promise<Page<Row>> | undefined
  const firstPage = () => {
    first ??= load(undefined)
    return first
  }
  return {
    // biome-ignore lint/suspicious/noThenProperty: a promise of the first page
    then: (resolve, reject) => firstPage().then(resolve, reject),
    catch: (reject) => firstPage().catch(reject),
    finally: (done) => firstPage().finally(done),
    [Symbol.toStringTag]: 'PagePromise',
    async *[Symbol.asyncIterator]() {
      for (let page: Page<Row> | undefined = await firstPage(); page; page = await page.next()) yield* page.items
    },
  }
}

/** Events by their number. A broken connection is taken up again behind the last event that arrived. */
async function* events(
  send: Send,
  request: OutgoingRequest,
  options: RequestOptions = {},
): AsyncGenerator<Row, void, undefined> {
  let after = request.query?.after
  for (let broken = 0; ; ) {
    try {
      const { body } = await send({ ...request, query: { ...request.query, after } }, { ...options, maxRetries: 0 })
      options.onConnection?.('live')
      for await (const event of jsonLines<Row>(body!)) {
        after = event.seq
        broken = 0
        yield event
      }
      return
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason
      const refused = error instanceof TuneryError && error.status < 500
      if (refused || broken >= (options.maxRetries ?? streamRetries)) throw error
      options.onConnection?.('reconnecting')
      await pause(backoff(broken++), options.signal)
    }
  }
}

async function stream(
  send: Send,
  request: OutgoingRequest,
  options: RequestOptions | undefined,
): Promise<EventStream<unknown>> {
  const response = await send(request, options)
  return {
    headers: response.headers,
    async *[Symbol.asyncIterator]() {
      try {
        for await (const event of serverSentEvents<Row & Partial<ErrorBody>>(response.body!)) {
          if (event.error && !('type' in event)) throw new TuneryError(response.status, response.headers, event.error)
          yield event
        }
      } catch (error) {
        if (options?.signal?.aborted) throw options.signal.reason
        if (error instanceof TuneryError) throw error
        throw new TuneryConnectionError('The stream broke before its end.', { cause: error })
      }
    },
  }
}

function fileOf(response: Response): FileResponse {
  const { headers } = response
  const disposition = headers.get('content-disposition') ?? ''
  const encoded = /filename\*=UTF-8''([^;]+)/i.exec(disposition)?.[1]
  const length = headers.get('content-length')
  return {
    filename: encoded ? decodeURIComponent(encoded) : /filename="([^"]+)"/i.exec(disposition)?.[1],
    size_bytes: length === null ? undefined : Number(length),
    headers,
    body: response.body!,
    blob: () => response.blob(),
    text: () => response.text(),
  }
}
