// The log of a request, whose lines carry its id. Made with the first line: most requests write none, and a child of
// the logger costs each of them some microseconds.
import type { FastifyBaseLogger } from 'fastify'

type ChildLoggerOptions = Parameters<FastifyBaseLogger['child']>[1]

const levels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const

class RequestLog {
  readonly #parent: FastifyBaseLogger
  readonly #bindings: object
  readonly #options: ChildLoggerOptions
  #log: FastifyBaseLogger | undefined

  constructor(parent: FastifyBaseLogger, bindings: object, options: ChildLoggerOptions) {
    this.#parent = parent
    this.#bindings = bindings
    this.#options = options
  }

  get own(): FastifyBaseLogger {
    this.#log ??= this.#parent.child(this.#bindings, this.#options)
    return this.#log
  }

  get level() {
    return this.own.level
  }

  child(bindings: object, options?: ChildLoggerOptions): FastifyBaseLogger {
    return this.own.child(bindings, options)
  }
}
for (const level of levels)
  Object.defineProperty(RequestLog.prototype, level, {
    value(this: RequestLog, ...line: Parameters<FastifyBaseLogger['info']>) {
      this.own[level](...line)
    },
  })

/** For Fastify's `childLoggerFactory`. */
export const createRequestLog = (
  parent: FastifyBaseLogger,
  bindings: object,
  options: ChildLoggerOptions,
): FastifyBaseLogger => new RequestLog(parent, bindings, options) as unknown as FastifyBaseLogger
