// Unpacks an adapter from an untrusted zip, in a separate process with limits: `node main.ts REQUEST`. Writes its two
// files into a folder, and the weights before its training if it has them, and prints their configuration and tensor
// shapes, or why they are invalid, as JSON.
import { createWriteStream, existsSync, statSync } from 'node:fs'
import { mkdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import yauzl from 'yauzl'
import { dieWithParent } from '../../../../lib/child-process.ts'
import { safetensorsHeader } from '../../../platform/storage/safetensors.ts'

export interface UnpackRequest {
  source: string
  out: string
  max_bytes: number
}
export interface Unpacked {
  config: Record<string, unknown>
  tensors: Record<string, { dtype: string; shape: number[] }>
}
export type UnpackResult = Unpacked | { invalid: string }

const configFile = 'adapter_config.json'
const weightsFile = 'adapter_model.safetensors'
/** The adapter before its training, in a folder beside its own files. */
const initialFolder = 'initial'
const maxEntries = 1000
const maxConfigBytes = 1e6
const maxHeaderBytes = 10e6
const bytesOf: Record<string, number> = { F32: 4, F16: 2, BF16: 2 }

class Invalid extends Error {}

async function unpack({ source, out, max_bytes }: UnpackRequest): Promise<Unpacked> {
  const zip = await yauzl
    .openPromise(source, { autoClose: false, validateEntrySizes: true, strictFileNames: true })
    .catch((error) => {
      throw new Invalid(`The file is no zip archive, or it is damaged: ${error.message}`)
    })
  try {
    const all = await entriesOf(zip)
    const others = all.filter((entry) => !isInitial(entry))
    const entries = others.some(({ fileName }) => path.posix.basename(fileName) === configFile) ? others : all
    const config = oneNamed(entries, configFile)
    const weights = oneNamed(entries, weightsFile)
    const initial =
      entries === all
        ? undefined
        : all.find((entry) => isInitial(entry) && path.posix.basename(entry.fileName) === weightsFile)
    await mkdir(path.join(out, initialFolder), { recursive: true })
    await extract(zip, config, path.join(out, configFile), maxConfigBytes)
    await extract(zip, weights, path.join(out, weightsFile), max_bytes)
    if (initial) await extract(zip, initial, path.join(out, initialFolder, weightsFile), max_bytes)
    else await rm(path.join(out, initialFolder), { recursive: true })
  } finally {
    zip.close()
  }
  const tensors = readTensors(path.join(out, weightsFile))
  requireAlike(tensors, path.join(out, initialFolder, weightsFile))
  return { config: await readConfig(path.join(out, configFile)), tensors }
}

const isInitial = ({ fileName }: yauzl.Entry) => path.posix.basename(path.posix.dirname(fileName)) === initialFolder

/** Throws Invalid if the adapter before its training, where there is one, has other tensors. */
function requireAlike(tensors: Unpacked['tensors'], initial: string): void {
  if (!existsSync(initial)) return
  const shapesOf = (tensors: Unpacked['tensors']) =>
    Object.entries(tensors)
      .map(([name, { shape }]) => `${name} ${shape}`)
      .sort()
      .join()
  if (shapesOf(readTensors(initial)) !== shapesOf(tensors))
    throw new Invalid(`The adapter in '${initialFolder}' has other tensors than the adapter itself.`)
}

async function entriesOf(zip: yauzl.ZipFile): Promise<yauzl.Entry[]> {
  const entries: yauzl.Entry[] = []
  try {
    for await (const entry of zip.eachEntry()) {
      if (entries.length === maxEntries) throw new Invalid(`The zip archive has more than ${maxEntries} entries.`)
      entries.push(entry)
    }
  } catch (error) {
    throw error instanceof Invalid ? error : new Invalid(`The zip archive is damaged: ${(error as Error).message}`)
  }
  return entries
}

function oneNamed(entries: yauzl.Entry[], name: string): yauzl.Entry {
  const matches = entries.filter((entry) => path.posix.basename(entry.fileName) === name)
  if (matches.length === 1) return matches[0]!
  if (matches.length > 1)
    throw new Invalid(
      `The zip archive has several files named ${name} (${matches
        .slice(0, 5)
        .map((entry) => entry.fileName)
        .join(', ')}). Zip one adapter's folder.`,
    )
  const pickled = entries.find((entry) => /\.(bin|pt|pth|ckpt|pkl|pickle)$/.test(entry.fileName))
  if (name === weightsFile && pickled)
    throw new Invalid(
      `${pickled.fileName} may run code when it is read, so only safetensors are taken. ` +
        'Save the adapter with safe_serialization=True.',
    )
  throw new Invalid(`The zip archive has no ${name}. Zip the folder that PEFT's save_pretrained writes.`)
}

async function extract(zip: yauzl.ZipFile, entry: yauzl.Entry, file: string, max_bytes: number): Promise<void> {
  const tooLarge = new Invalid(
    `${entry.fileName} is larger than ${Math.round(max_bytes / 1e6)} MB, the most this service takes.`,
  )
  if (entry.uncompressedSize > max_bytes) throw tooLarge
  let bytes = 0
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length
      done(bytes > max_bytes ? tooLarge : null, chunk)
    },
  })
  try {
    await pipeline(await zip.openReadStreamPromise(entry), meter, createWriteStream(file, { mode: 0o600 }))
  } catch (error) {
    if (error instanceof Invalid || (error as NodeJS.ErrnoException).code === 'ENOSPC') throw error
    throw new Invalid(`The zip archive is damaged: ${(error as Error).message}`)
  }
}

async function readConfig(file: string): Promise<Record<string, unknown>> {
  try {
    const config = JSON.parse(await readFile(file, 'utf8'))
    if (typeof config === 'object' && config !== null && !Array.isArray(config)) return config
  } catch {
    // Reported below.
  }
  throw new Invalid(`${configFile} is not a JSON object.`)
}

function readTensors(file: string): Unpacked['tensors'] {
  const damaged = (why: string) => new Invalid(`${weightsFile} is not a whole safetensors file: ${why}.`)
  const { size, header } = headerOf(file, damaged)
  // Without a prototype: a tensor may be called `__proto__`.
  const shapes: Unpacked['tensors'] = Object.create(null)
  let end = 0
  const offsetOf = (tensor: unknown) => (tensor as { data_offsets?: number[] } | null)?.data_offsets?.[0] ?? 0
  const tensors = Object.entries(header.tensors).sort(([, a], [, b]) => offsetOf(a) - offsetOf(b))
  for (const [name, tensor] of tensors) {
    const { dtype, shape, data_offsets } = tensor ?? {}
    const whole = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0
    if (!Array.isArray(shape) || !shape.every(whole) || !Array.isArray(data_offsets) || !data_offsets.every(whole))
      throw damaged(`it says nothing of ${name}`)
    const size_bytes = Object.hasOwn(bytesOf, dtype) ? bytesOf[dtype] : undefined
    if (!size_bytes) throw new Invalid(`The tensor ${name} is ${dtype}; an adapter's are F32, F16 or BF16.`)
    const bytes = shape.reduce((product, length) => product * length, size_bytes)
    if (data_offsets[1] - data_offsets[0] !== bytes || header.header_bytes + data_offsets[1] > size)
      throw damaged(`${name} is cut off`)
    if (data_offsets[0] !== end) throw damaged(`${name} does not begin where the one before ends`)
    end = data_offsets[1]
    shapes[name] = { dtype, shape }
  }
  if (tensors.length === 0) throw new Invalid(`${weightsFile} has no tensors.`)
  if (header.header_bytes + end !== size) throw damaged('its size is not what its header says')
  return shapes
}

function headerOf(file: string, damaged: (why: string) => Invalid) {
  try {
    return { size: statSync(file).size, header: safetensorsHeader(file, maxHeaderBytes) }
  } catch (error) {
    throw damaged((error as Error).message)
  }
}

async function main(): Promise<UnpackResult> {
  try {
    return await unpack(JSON.parse(process.argv[2]!) as UnpackRequest)
  } catch (error) {
    if (error instanceof Invalid) return { invalid: error.message.slice(0, 500) }
    throw error
  }
}

dieWithParent()
console.log(JSON.stringify(await main()))
