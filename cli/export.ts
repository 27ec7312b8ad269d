// `./tunery export`: has a service make files of a model, follows it, and brings the file here.
import { existsSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'
import type { ErrorBody } from '../contract/errors.ts'
import type { Export, ExportEvent, ExportFile } from '../contract/exports.ts'
import { readConfig } from '../server/config.ts'
import { type Asked, ask, bring, createBar, granted, waitAfter } from './download.ts'
import { UsageError } from './usage.ts'

export interface ExportOptions {
  format?: string
  quantization?: string
  output?: string
  archive?: string
  'push-to'?: string
  'adapter-only': boolean
  json: boolean
}

/** Makes an export of `what`, a model or a deployment, or goes on with one that was begun before, and tells of it. */
export async function exportModel(what: string, options: ExportOptions): Promise<void> {
  const { made, target } = await bringExport(what, options)
  // Into a folder comes all of it; a file that was named is one file.
  const beside = made.files.slice(1)
  const whole = options.output !== undefined && isFolder(path.resolve(options.output))
  if (whole)
    for (const file of beside)
      await bringFile(serviceOf(), made, file, path.join(path.dirname(target), path.basename(file.name)))
  if (options.json) return console.log(JSON.stringify({ ...made, path: target }))
  const { check, files } = made
  console.log(`${target}  ${size(files[0]!.size_bytes)}  SHA-256 ${files[0]!.sha256}`)
  if (check)
    console.log(
      `Its answers to ${check.prompts} prompts in ${check.runtime}: ${Math.round(100 * check.matching_tokens)} % of the tokens are the trainer's, log-probabilities ${check.log_probability_difference} apart.`,
    )
  for (const { name } of beside)
    console.log(
      whole ? `Beside it lies ${name}.` : `Beside it there is ${name}: GET ${serviceOf().url}${routeOf(made, name)}`,
    )
}

/** The same without a word at its end: the export, and the file that its first file was brought to. */
export async function bringExport(
  what: string,
  options: Omit<ExportOptions, 'json'>,
): Promise<{ made: Export; target: string }> {
  const service = serviceOf()
  const begun = what.startsWith('exp_')
  if (!begun && !options.format)
    throw new UsageError(
      'Give the format: ./tunery export MODEL --format gguf|huggingface|onnx [--quantization Q4_K_M] [-o FILE]',
    )
  const bar = createBar(process.stderr)
  const made = begun ? await json<Export>(service, 'GET', `/exports/${what}`) : await create(service, what, options)
  if (!begun)
    bar.say(
      `${made.id} waits for its turn; './tunery export ${made.id} -o FILE' goes on with it should this be interrupted.`,
    )
  await follow(service, made.id, (event) => {
    if (event.type === 'progress') bar.show(Number(event.data?.progress), event.message)
    else if (event.type !== 'status' || event.data?.status === 'running') bar.say(event.message)
  })
  const ready = await json<Export>(service, 'GET', `/exports/${made.id}`)
  if (ready.status !== 'ready')
    throw new UsageError(`${ready.id} is ${ready.status}${ready.error ? `: ${ready.error.message}` : '.'}`)
  const file = ready.files[0]!
  const target = targetOf(options.output, file.name)
  await bringFile(service, ready, file, target, (bytes) =>
    bar.show(bytes / file.size_bytes, `Downloading ${size(bytes)} of ${size(file.size_bytes)}`),
  )
  bar.end()
  return { made: ready, target }
}

const routeOf = ({ id }: Export, name: string) => `/exports/${id}/download?file=${encodeURIComponent(name)}`
const bringFile = (
  service: Asked,
  made: Export,
  file: ExportFile,
  target: string,
  onProgress: (bytes: number) => void = () => {},
) => bring({ ...service, route: routeOf(made, file.name), file, target, onProgress })
const isFolder = (target: string) => existsSync(target) && statSync(target).isDirectory()

function create(
  service: Asked,
  model: string,
  { format, quantization, archive, 'push-to': push_to, 'adapter-only': adapterOnly }: Omit<ExportOptions, 'json'>,
): Promise<Export> {
  const body = {
    model,
    format,
    ...(quantization && { quantization }),
    ...(archive && { archive }),
    ...(push_to && { push_to }),
    ...(adapterOnly && { merge: false }),
  }
  return json<Export>(service, 'POST', '/exports', body)
}

/** The service of the settings, or the one that runs on the data folder of this machine. */
function serviceOf(): Asked {
  const { url, api_key, data_dir } = readConfig(process.env)
  if (!api_key)
    throw new UsageError("Set TUNERY_API_KEY to a key of the account; './tunery keys create --name cli' makes one.")
  const file = path.join(data_dir, 'server.json')
  if (!url && !existsSync(file))
    throw new UsageError(
      `No service runs on ${data_dir}. Start one with 'npm start', or set TUNERY_URL to the address of another, such as https://tunery.example.com/v1.`,
    )
  return {
    url: (url ?? (JSON.parse(readFileSync(file, 'utf8')) as { url: string }).url).replace(/\/$/, ''),
    key: api_key,
  }
}

/** A folder takes the file under its own name. */
function targetOf(output: string | undefined, name: string): string {
  const target = path.resolve(output ?? '.')
  // Whatever the service calls it, it is put nowhere else.
  if (isFolder(target)) return path.join(target, path.basename(name))
  if (!existsSync(path.dirname(target))) throw new UsageError(`There is no folder ${path.dirname(target)}.`)
  return target
}

async function json<T>(service: Asked, method: string, route: string, body?: object): Promise<T> {
  const sent = { method, ...(body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }) }
  const response = await ask(service, route, sent).catch((error: Error) => {
    throw new UsageError(
      `${service.url} is not to be reached: ${(error.cause as Error | undefined)?.message || error.message}.`,
    )
  })
  const answer = (await response.json().catch(() => {
    throw new UsageError(
      `${service.url} answered ${response.status} without JSON. TUNERY_URL is the address of a service with its version: https://…/v1.`,
    )
  })) as T | ErrorBody
  if (!response.ok) throw new UsageError((answer as ErrorBody).error.message)
  return answer as T
}

/** Reads the events to their end, going on after the last where the stream breaks. */
async function follow(service: Asked, id: string, show: (event: ExportEvent) => void): Promise<void> {
  let seq = 0
  for (let broken = 0; ; ) {
    const before = seq
    try {
      const response = await granted(await ask(service, `/exports/${id}/events?after=${seq}`, {}))
      let rest = ''
      for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
        const lines = (rest + text).split('\n')
        rest = lines.pop()!
        for (const line of lines.filter(Boolean)) {
          const event = JSON.parse(line) as ExportEvent
          seq = event.seq
          show(event)
        }
      }
      const { status } = (await (await granted(await ask(service, `/exports/${id}`, {}))).json()) as Export
      if (status !== 'queued' && status !== 'running') return
    } catch (error) {
      if (error instanceof UsageError) throw error
      if (seq === before && ++broken >= 10)
        throw new UsageError(
          `${service.url} is not to be reached any more (${(error as Error).message}). './tunery export ${id}' goes on.`,
        )
    }
    if (seq > before) broken = 0
    await waitAfter(broken)
  }
}

const size = (bytes: number) => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`)
