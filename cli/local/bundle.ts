import { rmSync } from 'node:fs'
import { mkdir, realpath, rm } from 'node:fs/promises'
import { constants } from 'node:os'
import path from 'node:path'
import { downloadExport, downloadExportFile } from '../remote/export.ts'
import { UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show } from '../support/output.ts'
import { checkBundle, type NamedFile, requireVisionSource, writeBundle } from './bundle/write.ts'

interface BundleArgs extends GlobalOptions {
  output?: string | undefined
  gguf?: string | undefined
  name?: string | undefined
  quantization?: string | undefined
  projector?: string | undefined
  adapter?: string[] | undefined
  gpu?: string | undefined
  chart?: boolean | undefined
}

/** Writes a self-contained folder that serves one model, with Docker or with Node alone. */
export async function bundle(model: string, args: BundleArgs): Promise<void> {
  const { output, adapter = [], gpu = 'none' } = args
  if (!output) throw new UsageError('bundle needs -o FOLDER, which it makes.')
  if (gpu !== 'none' && gpu !== 'cuda') throw new UsageError(`--gpu is none or cuda, not '${gpu}'.`)
  const isFile = /\.gguf$/i.test(model)
  const name = args.name ?? (isFile ? path.basename(model).replace(/\.gguf$/i, '') : model)
  // Resolve symbolic links: the bundle replaces the folder that a link points to.
  const folder = await realpath(output).catch(() => path.resolve(output))
  removeTemporaryOnSignal(folder)
  const options = { adapters: adapter.map(parseNamedFile), gpu, chart: args.chart ?? false, out: folder } as const
  let { projector } = args
  const given = args.gguf ?? (isFile ? model : undefined)
  if (given) {
    if (args.quantization) throw new UsageError('--quantization is for a model that is exported; a file has its own.')
    await writeBundle({ model: { name, file: given }, projector, ...options })
  } else {
    if (projector) throw new UsageError('--projector is for --gguf; an exported model brings its own.')
    await checkBundle({ model: { name }, ...options })
    const exportFolder = `${folder}.${process.pid}.export`
    const exportedFile = path.join(exportFolder, 'model.gguf')
    await mkdir(exportFolder, { recursive: true })
    try {
      const { exportRecord, service } = await downloadExport(model, {
        format: 'gguf',
        quantization: args.quantization,
        output: exportedFile,
        url: args.url,
        key: args.key,
        profile: args.profile,
      })
      if (exportRecord.format !== 'gguf' || !exportRecord.merge)
        throw new UsageError(
          `${exportRecord.id} is not a model in one GGUF file. ` +
            `'./tunery bundle ${exportRecord.model} -o FOLDER' makes one.`,
        )
      const ofPictures = exportRecord.files.find((file) => file.name.startsWith('mmproj-'))
      if (ofPictures) {
        requireVisionSource(exportRecord.model)
        projector = path.join(exportFolder, 'mmproj.gguf')
        await downloadExportFile(service, exportRecord, ofPictures, projector)
      }
      await writeBundle({ model: { name, file: exportedFile }, projector, ...options })
    } finally {
      await rm(exportFolder, { recursive: true, force: true })
    }
  }
  show(
    args,
    { folder, name },
    `${folder} serves '${name}'. Start it there with Docker:\n\n` +
      '  docker build -t model . && docker run --init --read-only -p 127.0.0.1:8000:8000 model\n\n' +
      `or without:\n\n  npm ci --omit=dev --ignore-scripts && ${projector ? 'node vision/build.mjs && ' : ''}` +
      'node start.mjs\n\n' +
      (args.chart
        ? 'For Kubernetes, push the image, name it in chart/values.yaml, and:\n\n  helm install NAME chart\n\n'
        : '') +
      'Its README.md has the rest.',
  )
}

/**
 * Removes the temporary folders, which may be as large as the model, when a signal stops the command. A file operation
 * of the thread pool may still add to a folder while it is removed: so it retries, and removes again after a moment.
 */
function removeTemporaryOnSignal(folder: string): void {
  const remove = () => {
    for (const kind of ['part', 'export'])
      rmSync(`${folder}.${process.pid}.${kind}`, { recursive: true, force: true, maxRetries: 10, retryDelay: 10 })
  }
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => {
      remove()
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50)
      remove()
      process.exit(128 + constants.signals[signal])
    })
}

function parseNamedFile(text: string): NamedFile {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new UsageError(`--adapter takes NAME=FILE.gguf, not '${text}'.`)
  return { name: text.slice(0, at), file: text.slice(at + 1) }
}
