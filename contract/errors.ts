import { z } from 'zod'

/** All error codes with their HTTP status. A closed list: clients may switch on it. */
export const errorCodes = {
  // 400
  invalid_request: 400,
  invalid_json: 400,
  unknown_field: 400,
  not_multipart: 400,
  file_missing: 400,
  file_empty: 400,
  file_not_utf8: 400,
  file_not_readable: 400,
  parameter_not_supported: 400,
  dataset_invalid: 400,
  dataset_not_ready: 400,
  model_not_available: 400,
  model_not_callable: 400,
  model_disagrees: 400,
  adapter_invalid: 400,
  context_length_exceeded: 400,
  schema_not_enforceable: 400,
  link_invalid: 400,
  password_refused: 400,
  passkey_refused: 400,
  job_not_cancellable: 400,
  job_not_pausable: 400,
  job_not_resumable: 400,
  job_not_completed: 400,
  export_not_ready: 400,
  upload_not_pending: 400,
  upload_incomplete: 400,
  batch_not_cancellable: 400,
  gate_pending: 400,
  evaluation_not_found: 404,
  evaluation_not_cancellable: 400,
  evaluation_invalid: 400,
  graders_failed: 400,
  judge_budget_spent: 400,
  previous_response_not_found: 400,
  name_taken: 400,
  in_use: 400,
  address_blocked: 400,
  too_many: 400,
  idempotency_key_reused: 400,
  // 401, 403, 404, 405
  invalid_api_key: 401,
  sign_in_failed: 401,
  session_ended: 401,
  csrf_failed: 403,
  session_required: 403,
  insufficient_permissions: 403,
  account_suspended: 403,
  storage_quota_exceeded: 403,
  not_found: 404,
  model_not_found: 404,
  dataset_not_found: 404,
  file_not_found: 404,
  upload_not_found: 404,
  batch_not_found: 404,
  response_not_found: 404,
  completion_not_found: 404,
  job_not_found: 404,
  deployment_not_found: 404,
  export_not_found: 404,
  key_not_found: 404,
  member_not_found: 404,
  session_not_found: 404,
  passkey_not_found: 404,
  identity_not_found: 404,
  invitation_not_found: 404,
  account_not_found: 404,
  webhook_not_found: 404,
  delivery_not_found: 404,
  method_not_allowed: 405,
  // 413, 415, 416, 429
  body_too_large: 413,
  file_too_large: 413,
  unsupported_media_type: 415,
  range_not_satisfiable: 416,
  rate_limit_exceeded: 429,
  // 500, 502, 503, 504
  internal_error: 500,
  engine_failed: 500,
  stored_object_damaged: 500,
  upstream_failed: 502,
  upstream_timeout: 504,
  engine_unavailable: 503,
  overloaded: 503,
  storage_full: 503,
  storage_unavailable: 503,
  training_not_ready: 503,
  shutting_down: 503,
} as const

export type ErrorCode = keyof typeof errorCodes

/** Why a background operation failed. */
export const ErrorText = z.object({ code: z.string(), message: z.string() })
export type ErrorText = z.infer<typeof ErrorText>

/** The shape of every error. OpenAI-compatible routes set `type` and `param`, which OpenAI's clients read. */
export const ErrorBody = z.object({
  error: z.object({
    code: z.enum(Object.keys(errorCodes) as [ErrorCode, ...ErrorCode[]]),
    message: z.string(),
    details: z.record(z.string(), z.unknown()).optional(),
    type: z.string().optional(),
    param: z.string().nullable().optional(),
  }),
})
export type ErrorBody = z.infer<typeof ErrorBody>

/** An error for the API's caller: its message says what is wrong and what to do about it. */
export class ApiError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly details: Record<string, unknown> | undefined
  readonly param: string | undefined

  constructor(
    code: ErrorCode,
    message: string,
    extra: { details?: Record<string, unknown>; param?: string | undefined } = {},
  ) {
    super(message)
    this.code = code
    this.status = errorCodes[code]
    this.details = extra.details
    this.param = extra.param
  }

  /** The same error with another code, message or parameter. */
  with(changes: { code?: ErrorCode; message?: string; param?: string | undefined }): ApiError {
    const { code = this.code, message = this.message, param = this.param } = changes
    return new ApiError(code, message, {
      ...(this.details && { details: this.details }),
      ...(param !== undefined && { param }),
    })
  }
}

/** For `catch`: undefined for an ApiError with one of these codes. Throws any other error. */
export const undefinedIf =
  (...codes: ErrorCode[]) =>
  (error: unknown): undefined => {
    if (!(error instanceof ApiError && codes.includes(error.code))) throw error
  }

/** The `type` that OpenAI's clients expect with a status. */
export function openaiErrorType(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 403) return 'permission_error'
  if (status === 404) return 'not_found_error'
  if (status === 429) return 'rate_limit_error'
  return status >= 500 ? 'server_error' : 'invalid_request_error'
}

export function errorBody(error: ApiError, openai: boolean): ErrorBody {
  const { code, message, details } = error
  return {
    error: {
      code,
      message,
      ...(details && { details }),
      ...(openai && { type: openaiErrorType(error.status), param: error.param ?? null }),
    },
  }
}
