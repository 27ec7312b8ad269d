import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { EmbeddingsRequest, type EmbeddingsResponse } from '../../contract/embeddings.ts'
import { ApiError } from '../../contract/errors.ts'
import { type Embedder, embeddedTokensMax, normalized } from '../embedder.ts'
import { header, readBody, sendError, sendJson } from '../http-io.ts'
import type { Models } from '../models.ts'
import type { ServedModel } from '../served-model.ts'
import { knownTokens, textsOf } from './inputs.ts'
import { useModel } from './use-model.ts'

const textsAtOnce = 32

export type EmbeddingServices = { models: Models; embedder: Embedder; onFault(error: unknown): void }

export async function embeddings({ models, embedder, onFault }: EmbeddingServices, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await readBody(request, EmbeddingsRequest)
  const served = models.get(body.model)
  if (served.kind !== 'embedding')
    throw new ApiError(
      'model_not_callable',
      `'${body.model}' writes text; it was not trained to make embeddings. GET /v1/models lists those that can be called.`,
      { param: 'model' },
    )
  const dimensions = dimensionsOf(served, body.dimensions ?? null)
  const use = useModel(served, response)
  const letGo = use.hold()
  try {
    const texts = await readTexts(served, body.input)
    const vectors = await embedder.embed(served, texts, use.signal)
    const encode = body.encoding_format === 'base64' ? toBase64 : (vector: Float32Array) => Array.from(vector)
    const prompt_tokens = texts.reduce((sum, tokens) => sum + tokens.length, 0)
    const answer: EmbeddingsResponse = {
      object: 'list',
      data: vectors.map((vector, index) => ({ object: 'embedding', index, embedding: encode(shortened(vector, dimensions)) })),
      model: header(request, 'x-served-model-name') ?? body.model,
      usage: { prompt_tokens, total_tokens: prompt_tokens },
    }
    sendJson(response, 200, answer)
  } catch (error) {
    if (!(error instanceof ApiError) && !use.ended()) onFault(error)
    sendError(response, error)
  } finally {
    letGo()
    use.end()
  }
}

function dimensionsOf({ model, matryoshka, name }: ServedModel, wanted: number | null): number {
  const all = model.embedding_length
  if (wanted === null || wanted === all) return all
  if (!matryoshka || wanted > all)
    throw new ApiError(
      'parameter_not_supported',
      `The embeddings of '${name}' have ${all} dimensions${matryoshka ? ' at most' : ' and cannot be shortened'}.`,
      { param: 'dimensions' },
    )
  return wanted
}

async function readTexts(served: ServedModel, input: EmbeddingsRequest['input']): Promise<number[][]> {
  const { model } = served
  const context_length = embeddedTokensMax(model)
  const texts: number[][] = []
  for (const each of textsOf(input)) {
    const tokens = typeof each === 'string' ? await model.vocab.tokenize(each, false, true) : knownTokens(model, each, 'input')
    if (tokens.length === 0) throw new ApiError('invalid_request', `Text ${texts.length} has nothing that this model has a token for.`, { param: 'input' })
    if (tokens.length > context_length)
      throw new ApiError(
        'context_length_exceeded',
        `Text ${texts.length} has ${tokens.length} tokens; this model takes ${context_length}. Shorten it, or send it in parts.`,
        { details: { prompt_tokens: tokens.length, context_length }, param: 'input' },
      )
    texts.push(tokens)
    // Tokenizing thousands of texts takes a while, in which the streams go on.
    if (texts.length % textsAtOnce === 0) await nextTurn()
  }
  return texts
}

function shortened(vector: Float32Array, dimensions: number): Float32Array {
  return dimensions === vector.length ? vector : normalized(vector.subarray(0, dimensions))
}

function toBase64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')
}
