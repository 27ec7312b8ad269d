import type { IncomingMessage, ServerResponse } from 'node:http'
import { EmbeddingsRequest, type EmbeddingsResponse } from '../../../contract/embeddings.ts'
import { ApiError } from '../../../contract/errors.ts'
import { type Embedder, embeddedTokensMax, normalized } from '../../embeddings/embedder.ts'
import type { Models, ServedModel } from '../../models/models.ts'
import { weightsHeader, weightsOf } from '../../models/weights-header.ts'
import type { TokenizeOptions, Tokenizer } from '../../tokenizer/tokenizer.ts'
import { header, readBody, sendError, sendJson } from '../io.ts'
import { idsOf, type LogIds } from '../trace.ts'
import { requireKnownTokens, textsOf } from './completions.ts'
import { useModel } from './use-model.ts'

export interface EmbeddingServices {
  models: Models
  embedder: Embedder
  tokenizer: Tokenizer
  onFault(error: unknown, ids: LogIds): void
}

export async function embeddings(
  { models, embedder, tokenizer, onFault }: EmbeddingServices,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const body = await readBody(request, EmbeddingsRequest)
  const served = models.get(body.model)
  if (served.kind !== 'embedding')
    throw new ApiError(
      'model_not_callable',
      `'${body.model}' writes text; it was not trained to make embeddings. ` +
        'GET /v1/models lists what you can call.',
      { param: 'model' },
    )
  const dimensions = dimensionsOf(served, body.dimensions ?? null)
  const use = useModel(served, response)
  const release = use.retain()
  try {
    const caller = { account: header(request, 'x-tunery-account') ?? '', signal: use.signal }
    const texts = await tokenizeInputs(tokenizer, served, body.input, caller)
    const vectors = await embedder.embed(served, texts, caller)
    const encode = body.encoding_format === 'base64' ? toBase64 : (vector: Float32Array) => Array.from(vector)
    const prompt_tokens = texts.reduce((sum, tokens) => sum + tokens.length, 0)
    const answer: EmbeddingsResponse = {
      object: 'list',
      data: vectors.map((vector, index) => ({
        object: 'embedding',
        index,
        embedding: encode(truncated(vector, dimensions)),
      })),
      model: header(request, 'x-served-model-name') ?? body.model,
      usage: { prompt_tokens, total_tokens: prompt_tokens },
    }
    sendJson(response, 200, answer, { [weightsHeader]: weightsOf(served) })
  } catch (error) {
    if (!(error instanceof ApiError) && !use.ended()) onFault(error, idsOf(request, response))
    sendError(response, error)
  } finally {
    release()
    use.end()
  }
}

function dimensionsOf({ model, matryoshka, name }: ServedModel, requested: number | null): number {
  const all = model.embedding_length
  if (requested === null || requested === all) return all
  if (!matryoshka || requested > all)
    throw new ApiError(
      'parameter_not_supported',
      `The embeddings of '${name}' have ${all} dimensions${matryoshka ? ' at most' : ' and cannot be shortened'}.`,
      { param: 'dimensions' },
    )
  return requested
}

async function tokenizeInputs(
  tokenizer: Tokenizer,
  { model }: ServedModel,
  input: EmbeddingsRequest['input'],
  caller: Pick<TokenizeOptions, 'account' | 'signal'>,
): Promise<number[][]> {
  const { vocab } = model
  const { before, after } = vocab.affixes
  const context_length = embeddedTokensMax(model)
  // The first failure cancels the others.
  const failed = new AbortController()
  const signal = AbortSignal.any([caller.signal, failed.signal])
  const read = async (text: string | number[], index: number): Promise<number[]> => {
    const tooLong = (tokens: number, qualifier = 'at least ') =>
      new ApiError(
        'context_length_exceeded',
        `Text ${index} has ${qualifier}${tokens} tokens; this model takes ${context_length}. ` +
          'Shorten it, or send it in parts.',
        { details: { prompt_tokens: tokens, context_length }, param: 'input' },
      )
    const options = { account: caller.account, signal, tokens_max: 2 * context_length, tooLong }
    const tokens =
      typeof text === 'string'
        ? [...before, ...(await tokenizer.tokenize(vocab, { text, controls: 'none' }, options)), ...after]
        : requireKnownTokens(model, text, 'input')
    if (tokens.length === 0)
      throw new ApiError('invalid_request', `Text ${index} has nothing that this model has a token for.`, {
        param: 'input',
      })
    if (tokens.length > context_length) throw tooLong(tokens.length, '')
    return tokens
  }
  try {
    return await Promise.all(textsOf(input).map(read))
  } finally {
    failed.abort()
  }
}

function truncated(vector: Float32Array, dimensions: number): Float32Array {
  return dimensions === vector.length ? vector : normalized(vector.subarray(0, dimensions))
}

function toBase64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')
}
