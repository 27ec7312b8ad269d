// `./tunery export`: creates an export on a service, follows its events and downloads its files.
import { existsSync, statSync } from 'node:fs'
import path from 'node:path'
import { type Export, type ExportFile, TuneryConnectionError, TuneryError } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { createBar } from '../support/output.ts'
import { type Connection, connect, type Service } from '../support/service.ts'
import { bar as drawBar } from '../support/text.ts'
import { downloadFile } from './download.ts'
import { explained } from './explained.ts'
import { callableOf } from './named.ts'

export interface ExportOptions extends GlobalOptions {
  format?: string
  quantization?: string | undefined
  output?: string
  archive?: string
  pushTo?: string
  adapterOnly?: boolean
}

/** Exports a model or deployment, or resumes an export (`exp_…`), downloads the files and prints a summary. */
export async function exportModel(modelOrExport: string, options: ExportOptions): Promise<void> {
  const { exportRecord, target, service } = await downloadExport(modelOrExport, options)
  // An output folder gets all files; an output file only the first.
  const otherFiles = exportRecord.files.slice(1)
  const intoFolder = options.output !== undefined && isFolder(path.resolve(options.output))
  if (intoFolder)
    for (const file of otherFiles)
      await downloadExportFile(service, exportRecord, file, path.join(path.dirname(target), path.basename(file.name)))
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
        : `Not downloaded: ${name}, at GET ${service.url}${routeOf(exportRecord, name)}`,
    )
}

/** The same without the summary and the other files. Returns the export and where its first file is. */
export function downloadExport(
  modelOrExport: string,
  options: ExportOptions,
): Promise<{ exportRecord: Export; target: string; service: Service }> {
  return explained(() => makeAndDownload(modelOrExport, options))
}

async function makeAndDownload(modelOrExport: string, options: ExportOptions) {
  const service = connect(options)
  const { tunery } = service
  const isResume = modelOrExport.startsWith('exp_')
  if (!isResume && !options.format)
    throw new UsageError(
      `Give the format: ${typed('export MODEL --format gguf|huggingface|onnx [--quantization Q4_K_M] [-o FILE]')}`,
    )
  const bar = createBar(process.stderr, (share) => drawBar(share, 28, process.stderr))
  const created = isResume
    ? await tunery.exports.get(modelOrExport)
    : await create(service, await callableOf(tunery, modelOrExport), options)
  if (!isResume)
    bar.say(
      `${created.id} is queued. If this command is interrupted, '${typed(`export ${created.id} -o FILE`)}' resumes it.`,
    )
  const ready = await follow(service, created.id, bar)
  if (ready.status !== 'ready')
    throw new UsageError(`${ready.id} is ${ready.status}${ready.error ? `: ${ready.error.message}` : '.'}`)
  const file = ready.files[0]!
  const target = targetOf(options.output, file.name)
  await downloadExportFile(service, ready, file, target, (bytes) =>
    bar.show(bytes / file.size_bytes, `Downloading ${size(bytes)} of ${size(file.size_bytes)}`),
  )
  bar.end()
  return { exportRecord: ready, target, service }
}

const routeOf = ({ id }: Export, name: string) => `/exports/${id}/download?file=${encodeURIComponent(name)}`
export const downloadExportFile = (
  service: Service,
  exportRecord: Export,
  file: ExportFile,
  target: string,
  onProgress: (bytes: number) => void = () => {},
) =>
  downloadFile({
    url: service.url,
    key: service.key,
    route: routeOf(exportRecord, file.name),
    file,
    target,
    onProgress,
  })
const isFolder = (target: string) => existsSync(target) && statSync(target).isDirectory()

function create(
  { tunery }: Connection,
  model: string,
  { format, quantization, archive, pushTo, adapterOnly }: ExportOptions,
): Promise<Export> {
  return tunery.exports.create({
    model,
    // The service says which formats and archives there are.
    format: format as Export['format'],
    ...(quantization && { quantization }),
    ...(archive && { archive: archive as 'tar' | 'zip' }),
    ...(pushTo && { push_to: pushTo }),
    ...(adapterOnly && { merge: false }),
  })
}

/** The file to write: `output`, or the service's file name inside it if `output` is a folder. */
function targetOf(output: string | undefined, name: string): string {
  const target = path.resolve(output ?? '.')
  // basename: the service's name must not lead outside the folder.
  if (isFolder(target)) return path.join(target, path.basename(name))
  if (!existsSync(path.dirname(target))) throw new UsageError(`There is no folder ${path.dirname(target)}.`)
  return target
}

/** Shows the events to their end, through lost connections and restarts. Returns the export. */
async function follow({ tunery, url }: Connection, id: string, bar: ReturnType<typeof createBar>): Promise<Export> {
  const events = tunery.exports.follow(id)
  try {
    for (;;) {
      const { done, value } = await events.next()
      if (done) return value
      if (value.type === 'progress') bar.show(Number(value.data?.progress), value.message)
      else if (value.type !== 'status' || value.data?.status === 'running') bar.say(value.message)
    }
  } catch (error) {
    const isGone = error instanceof TuneryConnectionError || (error instanceof TuneryError && error.status >= 500)
    if (!isGone) throw error
    throw new UsageError(
      `${url} cannot be reached any more (${(error as Error).message}). '${typed(`export ${id}`)}' resumes.`,
    )
  }
}

const size = (bytes: number) => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`)
