/** Options of one request. */
export interface RequestOptions {
  /** Ends the request, and a stream that it began. */
  signal?: AbortSignal | undefined
  /** Retries of a failed request. Default: the client's. */
  maxRetries?: number | undefined
  /** Milliseconds until the response must have begun. Default: the client's. */
  timeout_ms?: number | undefined
  headers?: Record<string, string> | undefined
  /** Idempotency key of a creating request: a second one with it gets the first one's answer. Default: a random key. */
  idempotencyKey?: string | undefined
  /** Called when the connection of a stream of numbered events opens, breaks and is resumed. */
  onConnection?: ((state: 'live' | 'reconnecting') => void) | undefined
}

/** A file to upload: a Blob or File, bytes, or text. */
export type FileInput = Blob | Uint8Array<ArrayBuffer> | string

/** The first page of a list; `for await` goes through the items of all pages. */
export interface PagePromise<Item> extends Promise<Page<Item>>, AsyncIterable<Item> {}

export interface Page<Item> {
  items: Item[]
  has_more: boolean
  /** The next page; undefined after the last one. */
  next(): Promise<Page<Item>> | undefined
}

/** The response of a download. Its body is read once. */
export interface FileResponse {
  /** The name that the service gives the file. */
  filename: string | undefined
  size_bytes: number | undefined
  headers: Headers
  body: ReadableStream<Uint8Array>
  blob(): Promise<Blob>
  text(): Promise<string>
}

/** The events of a stream, in order. Ending the loop ends the request, and the generation behind it. */
export interface EventStream<Event> extends AsyncIterable<Event> {
  /** The headers of the response: `x-request-id`, `server-timing`. */
  headers: Headers
}

/** An event of a streamed response in OpenAI's Responses API. */
export interface ResponseEvent {
  type: string
  sequence_number?: number
  [field: string]: unknown
}
