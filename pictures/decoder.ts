// Decodes pictures of users in a child process of bounded time and memory, which is restarted when it dies.
import { type ChildProcess, fork } from 'node:child_process'
import path from 'node:path'
import { childEnv, processMemoryMb } from '../lib/child-process.ts'
import { createMutex } from '../lib/mutex.ts'
import { root } from '../lib/root.ts'
import type {
  DecodedPicture,
  DecodeRequest,
  DecodeResponse,
  DecodeResults,
  NormalizedPicture,
  PictureSize,
} from './decoder-messages.ts'
import { PictureError, readHeader } from './formats.ts'

export interface PictureDecoder {
  /** The size that `decode` gives, from the file's header. Throws PictureError. */
  measure(file: Buffer, signal?: AbortSignal): Promise<PictureSize>
  /**
   * Decodes a picture and gives its size alone. Throws PictureError, also for one that is damaged behind its header.
   */
  check(file: Buffer, signal?: AbortSignal): Promise<PictureSize>
  /** The pixels of a picture, of a GIF its first frame: upright, transparent parts on white. Throws PictureError. */
  decode(file: Buffer, signal?: AbortSignal): Promise<DecodedPicture>
  /**
   * The picture as it is kept: upright, without metadata; the same bytes where these are so already. A GIF becomes a
   * PNG of its first frame. Throws PictureError.
   */
  normalize(file: Buffer, signal?: AbortSignal): Promise<NormalizedPicture>
  close(): void
}

interface Options {
  /** Limits of one picture. */
  time_ms?: number
  memory_mb?: number
  /** The child ends after this time without work. */
  idle_ms?: number
}

const memoryPoll_ms = 50

/** Starts the child with the first picture; pictures are decoded one at a time. */
export function createPictureDecoder({
  time_ms = 20_000,
  memory_mb = 1500,
  idle_ms = 60_000,
}: Options = {}): PictureDecoder {
  const inTurn = createMutex()
  let child: ChildProcess | undefined
  let idle: NodeJS.Timeout | undefined
  let requests = 0

  function running(): ChildProcess {
    if (child?.connected) return child
    child = fork(path.join(import.meta.dirname, 'child.ts'), {
      cwd: root,
      env: childEnv(),
      execArgv: ['--import', path.join(root, 'lib/ignore-terminal.mjs')],
      // Its stdin ends with this process.
      stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
      serialization: 'advanced',
    })
    child.on('error', () => {})
    child.stdin?.on('error', () => {})
    child.unref()
    return child
  }

  const end = () => {
    child?.kill('SIGKILL')
    child = undefined
  }

  const perform = <Work extends keyof DecodeResults>(work: Work, file: Buffer, signal: AbortSignal | undefined) =>
    inTurn(async () => {
      signal?.throwIfAborted()
      clearTimeout(idle)
      const process = running()
      const id = ++requests
      const { promise, resolve, reject } = Promise.withResolvers<DecodeResponse>()
      const giveUp = (reason: unknown) => {
        end()
        reject(reason)
      }
      const slow = setTimeout(
        () => giveUp(new PictureError(`The picture took more than ${time_ms / 1000} s to decode. Send a simpler one.`)),
        time_ms,
      )
      const tooLarge = new PictureError(`The picture takes more than ${memory_mb} MB to decode. Send a smaller one.`)
      const watch = setInterval(() => processMemoryMb(process.pid) > memory_mb && giveUp(tooLarge), memoryPoll_ms)
      const onEnd = () =>
        giveUp(new PictureError('The picture could not be decoded: it ends the decoder. Send it in another format.'))
      const onAbort = () => giveUp(signal!.reason)
      const onMessage = (message: DecodeResponse) => message.id === id && resolve(message)
      process.once('exit', onEnd).on('message', onMessage)
      signal?.addEventListener('abort', onAbort, { once: true })
      process.send({ id, work, file } satisfies DecodeRequest, (error) => error && onEnd())
      const response = await promise.finally(() => {
        clearTimeout(slow)
        clearInterval(watch)
        process.off('exit', onEnd).off('message', onMessage)
        signal?.removeEventListener('abort', onAbort)
      })
      idle = setTimeout(end, idle_ms).unref()
      if ('refused' in response) throw new PictureError(`The picture cannot be decoded: ${response.refused}.`)
      return response.result as DecodeResults[Work]
    })

  const works =
    <Work extends keyof DecodeResults>(work: Work) =>
    async (file: Buffer, signal?: AbortSignal) => {
      // What its header rules out costs no turn in the child.
      readHeader(file)
      return await perform(work, file, signal)
    }

  return {
    measure: works('measure'),
    check: works('check'),
    decode: works('decode'),
    normalize: works('normalize'),
    close() {
      clearTimeout(idle)
      end()
    },
  }
}
