// Worker thread that runs XGrammar: compiles grammars and computes token masks, one job at a time. Started by host.ts.
import { parentPort, workerData } from 'node:worker_threads'
import { ownTime, threadId } from '../../lib/thread-time.ts'
import {
  clock,
  control,
  failed,
  maskWords,
  ready,
  type SessionMemory,
  stateWord,
  type VocabData,
  viewSessionMemory,
  working,
} from './session-memory.ts'
import type { FromWorker, GrammarSource, ToWorker, WorkerData } from './worker-messages.ts'
import { type CompiledGrammar, loadXGrammar, type Matcher } from './xgrammar.ts'

interface Session {
  matcher: Matcher
  memory: SessionMemory
  accepted: number
}

const { vocab, control: controlBuffer, memory_bytes } = workerData as WorkerData
const words = new Int32Array(controlBuffer)
Atomics.store(words, control.thread, threadId())
const port = parentPort!
const { xgrammar, memoryBytes } = loadXGrammar(memory_bytes)
const info = await xgrammar.TokenizerInfo.createTokenizerInfo(
  spellings(vocab),
  'byte_level',
  false,
  vocab.size,
  vocab.end_tokens,
)
const compiler = await xgrammar.GrammarCompiler.createGrammarCompiler(info, false)
const writable = writableTokens(vocab)
const grammars = new Map<string, CompiledGrammar>()
const sessions = new Map<number, Session>()

let queue = Promise.resolve()
port.on('message', (message: ToWorker) => {
  queue = queue.then(() => runJob(message))
})
Atomics.store(words, control.started, 1)
port.postMessage({ kind: 'started' } satisfies FromWorker)

async function runJob(message: ToWorker): Promise<void> {
  const began = ownTime()
  Atomics.store(words, control.since, clock())
  Atomics.store(words, control.used, began)
  Atomics.store(words, control.job, message.job)
  try {
    const result = await handle(message)
    if (message.kind === 'compile' || message.kind === 'probe')
      port.postMessage({
        kind: 'done',
        job: message.job,
        elapsed_ms: ownTime() - began,
        ...result,
      } satisfies FromWorker)
  } catch (error) {
    port.postMessage({
      kind: 'failed',
      job: message.job,
      reason: String((error as Error)?.message ?? error),
    } satisfies FromWorker)
    // An aborted WebAssembly module is unusable; the owner starts another worker.
    throw error
  }
  Atomics.store(words, control.memory_kib, memoryBytes() / 1024)
  Atomics.store(words, control.job, 0)
  Atomics.add(words, control.done, 1)
}

async function handle(message: ToWorker): Promise<{ slowest_ms: number; stuck: boolean } | undefined> {
  if (message.kind === 'compile') grammars.set(message.grammar, await compile(message.source))
  else if (message.kind === 'probe') return probe(message.grammar, message.masks, message.total_ms)
  else if (message.kind === 'open') await open(message)
  else if (message.kind === 'accept') await accept(message.job, message.token)
  else if (message.kind === 'close') {
    sessions.get(message.job)?.matcher.dispose()
    sessions.delete(message.job)
  } else {
    grammars.get(message.grammar)?.dispose()
    grammars.delete(message.grammar)
  }
  return undefined
}

async function compile(source: GrammarSource): Promise<CompiledGrammar> {
  const grammar = await (source.kind === 'ebnf'
    ? xgrammar.Grammar.fromEBNF(source.ebnf)
    : xgrammar.Grammar.fromStructuralTag(source.tag))
  const compiled = await compiler.compileGrammar(grammar)
  grammar.dispose()
  return compiled
}

async function open({ job, grammar, memory, tokens }: ToWorker & { kind: 'open' }): Promise<void> {
  const matcher = await xgrammar.GrammarMatcher.createGrammarMatcher(grammars.get(grammar)!)
  const session: Session = { matcher, memory: viewSessionMemory(memory), accepted: tokens.length }
  sessions.set(job, session)
  if (tokens.every((token) => matcher.acceptToken(token))) await writeMask(session)
  else fail(session)
}

async function accept(id: number, token: number): Promise<void> {
  const session = sessions.get(id)
  if (!session) return
  session.accepted++
  // The caller may accept an end token after the matcher has terminated; there is nothing left to match.
  if (!session.matcher.isTerminated() && !session.matcher.acceptToken(token)) fail(session)
  else await writeMask(session)
}

async function writeMask({ matcher, memory, accepted }: Session): Promise<void> {
  // More tokens are queued: only the mask after the last one is needed.
  if (Atomics.load(memory.state, 0) !== stateWord(accepted, working)) return
  if (matcher.isTerminated()) allowEndTokensOnly(memory.mask)
  else {
    const mask = await matcher.getNextTokenBitmask()
    let isEmpty = 0
    for (let word = 0; word < memory.mask.length; word++) isEmpty |= memory.mask[word] = mask[word]! & writable[word]!
    if (isEmpty === 0) return fail({ memory, accepted })
  }
  publish(memory, accepted, ready)
}

function allowEndTokensOnly(mask: Uint32Array): void {
  mask.fill(0)
  for (const token of vocab.end_tokens) mask[token >> 5]! |= 1 << (token & 31)
}

function fail({ memory, accepted }: Pick<Session, 'memory' | 'accepted'>): void {
  publish(memory, accepted, failed)
}

function publish(memory: SessionMemory, accepted: number, status: number): void {
  Atomics.compareExchange(memory.state, 0, stateWord(accepted, working), stateWord(accepted, status))
  Atomics.notify(memory.state, 0)
}

/**
 * Walks randomly through the grammar and measures the slowest mask, in milliseconds of CPU time. `stuck`: no token is
 * allowed.
 */
async function probe(
  grammar: string,
  masks: number,
  total_ms: number,
): Promise<{ slowest_ms: number; stuck: boolean }> {
  const matcher = await xgrammar.GrammarMatcher.createGrammarMatcher(grammars.get(grammar)!)
  const began = ownTime()
  let slowest_ms = 0
  let random = 1
  for (let step = 0; step < masks && ownTime() - began < total_ms; step++) {
    const before = ownTime()
    const mask = await matcher.getNextTokenBitmask()
    const allowed: number[] = []
    for (let token = 0; token < vocab.size; token++)
      if (((mask[token >> 5]! & writable[token >> 5]!) >>> (token & 31)) & 1) allowed.push(token)
    if (allowed.length === 0) return { slowest_ms, stuck: true }
    random = (random * 48_271) % 0x7fffffff
    const token = allowed[random % allowed.length]!
    if (!matcher.acceptToken(token)) return { slowest_ms, stuck: true }
    slowest_ms = Math.max(slowest_ms, ownTime() - before)
    if (matcher.isTerminated()) matcher.reset()
  }
  matcher.dispose()
  return { slowest_ms, stuck: false }
}

/** Spells the tokens as in GPT-2's vocabulary, where every byte is a printable character. */
function spellings({ size, bytes, starts }: VocabData): string[] {
  let others = 256
  const spelling = Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad)
    return String.fromCharCode(isPrintable ? byte : others++)
  })
  return Array.from({ length: size }, (_, token) => {
    let text = ''
    for (let at = starts[token]!; at < starts[token + 1]!; at++) text += spelling[bytes[at]!]
    return text
  })
}

/** Mask of the tokens that have bytes, and of end tokens. Other control tokens never belong in a document. */
function writableTokens({ size, starts, end_tokens }: VocabData): Uint32Array {
  const mask = new Uint32Array(maskWords(size))
  for (let token = 0; token < size; token++)
    if (starts[token + 1]! > starts[token]!) mask[token >> 5]! |= 1 << (token & 31)
  for (const token of end_tokens) mask[token >> 5]! |= 1 << (token & 31)
  return mask
}
