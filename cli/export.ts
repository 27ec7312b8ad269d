// `./tunery export`: creates an export on a service, follows its events and downloads its files.
import { existsSync, statSync } from 'node:fs'
import path from 'node:path'
import type { Export, ExportEvent, ExportFile } from '../contract/exports.ts'
import { assertOk, createBar, downloadFile, request, type ServiceAddress, waitBeforeRetry } from './download.ts'
import { json, serviceAddress } from './service.ts'
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

/** Exports a model or deployment, or resumes an export (`exp_…`), downloads the files and prints a summary. */
export async function exportModel(modelOrExport: string, options: ExportOptions): Promise<void> {
  const { exportRecord, target } = await downloadExport(modelOrExport, options)
  // An output folder gets all files; an output file only the first.
  const otherFiles = exportRecord.files.slice(1)
  const intoFolder = options.output !== undefined && isFolder(path.resolve(options.output))
  if (intoFolder)
    for (const file of otherFiles)
      await downloadExportFile(
        serviceAddress(),
        exportRecord,
        file,
        path.join(path.dirname(target), path.basename(file.name)),
      )
  if (options.json) return console.log(JSON.stringify({ ...exportRecord, path: target }))
  const { check, files } = exportRecord
  console.log(`${target}  ${size(files[0]!.size_bytes)}  SHA-256 ${files[0]!.sha256}`)
  if (check)
    console.log(
      `Its answers to ${check.prompts} prompts in ${check.runtime}: ${Math.round(100 * check.matching_tokens)} % of ` +
        `the tokens match the trainer's, log-probabilities differ by ${check.log_probability_difference}.`,
    )
  for (const { name } of otherFiles)
    console.log(
      intoFolder
        ? `Also downloaded: ${name}`
        : `Not downloaded: ${name}, at GET ${serviceAddress().url}${routeOf(exportRecord, name)}`,
    )
}

/** The same without the summary and the other files. Returns the export and where its first file is. */
export async function downloadExport(
  modelOrExport: string,
  options: Omit<ExportOptions, 'json'>,
): Promise<{ exportRecord: Export; target: string }> {
  const service = serviceAddress()
  const isResume = modelOrExport.startsWith('exp_')
  if (!isResume && !options.format)
    throw new UsageError(
      'Give the format: ./tunery export MODEL --format gguf|huggingface|onnx [--quantization Q4_K_M] [-o FILE]',
    )
  const bar = createBar(process.stderr)
  const created = isResume
    ? await json<Export>(service, 'GET', `/exports/${modelOrExport}`)
    : await create(service, modelOrExport, options)
  if (!isResume)
    bar.say(
      `${created.id} is queued. If this command is interrupted, './tunery export ${created.id} -o FILE' resumes it.`,
    )
  await follow(service, created.id, (event) => {
    if (event.type === 'progress') bar.show(Number(event.data?.progress), event.message)
    else if (event.type !== 'status' || event.data?.status === 'running') bar.say(event.message)
  })
  const ready = await json<Export>(service, 'GET', `/exports/${created.id}`)
  if (ready.status !== 'ready')
    throw new UsageError(`${ready.id} is ${ready.status}${ready.error ? `: ${ready.error.message}` : '.'}`)
  const file = ready.files[0]!
  const target = targetOf(options.output, file.name)
  await downloadExportFile(service, ready, file, target, (bytes) =>
    bar.show(bytes / file.size_bytes, `Downloading ${size(bytes)} of ${size(file.size_bytes)}`),
  )
  bar.end()
  return { exportRecord: ready, target }
}

const routeOf = ({ id }: Export, name: string) => `/exports/${id}/download?file=${encodeURIComponent(name)}`
const downloadExportFile = (
  service: ServiceAddress,
  exportRecord: Export,
  file: ExportFile,
  target: string,
  onProgress: (bytes: number) => void = () => {},
) => downloadFile({ ...service, route: routeOf(exportRecord, file.name), file, target, onProgress })
const isFolder = (target: string) => existsSync(target) && statSync(target).isDirectory()

function create(
  service: ServiceAddress,
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

/** The file to write: `output`, or the service's file name inside it if `output` is a folder. */
function targetOf(output: string | undefined, name: string): string {
  const target = path.resolve(output ?? '.')
  // basename: the service's name must not lead outside the folder.
  if (isFolder(target)) return path.join(target, path.basename(name))
  if (!existsSync(path.dirname(target))) throw new UsageError(`There is no folder ${path.dirname(target)}.`)
  return target
}

/** Reads the events to their end; resumes after the last one if the stream breaks. */
async function follow(service: ServiceAddress, id: string, show: (event: ExportEvent) => void): Promise<void> {
  let seq = 0
  for (let failures = 0; ; ) {
    const before = seq
    try {
      const response = await assertOk(await request(service, `/exports/${id}/events?after=${seq}`, {}))
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
      const { status } = (await (await assertOk(await request(service, `/exports/${id}`, {}))).json()) as Export
      if (status !== 'queued' && status !== 'running') return
    } catch (error) {
      if (error instanceof UsageError) throw error
      if (seq === before && ++failures >= 10)
        throw new UsageError(
          `${service.url} cannot be reached any more (${(error as Error).message}). './tunery export ${id}' resumes.`,
        )
    }
    if (seq > before) failures = 0
    await waitBeforeRetry(failures)
  }
}

const size = (bytes: number) => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`)
