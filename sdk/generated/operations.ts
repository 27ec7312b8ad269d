// Written by `npm run docs` from the contract. Do not edit.

import type { EventStream, FileInput, FileResponse, PagePromise, RequestOptions, ResponseEvent } from '../types.ts'
import type * as T from './types.ts'

export interface Operations {
  user: {
    /** Who asks: the person and account of the key or session. `GET /user/profile` */
    profile: (options?: RequestOptions) => Promise<T.Profile>
    /** Wait for the end of the key or session. `GET /user/presence` */
    presence: (query?: T.UserPresenceQuery, options?: RequestOptions) => Promise<T.UserPresenceResponse>
    /** Change your name or email. `PATCH /user` */
    update: (body: T.UserUpdateBody, options?: RequestOptions) => Promise<T.Member>
    /** Set your password; all your other sessions end. `PUT /user/password` */
    setPassword: (body: T.UserSetPasswordBody, options?: RequestOptions) => Promise<T.UserSetPasswordResponse>
    passkeys: {
      /** What a browser needs to make a passkey. `POST /user/passkeys/options` */
      options: (options?: RequestOptions) => Promise<T.UserPasskeysOptionsResponse>
      /** Add a passkey. `POST /user/passkeys` */
      add: (body: T.UserPasskeysAddBody, options?: RequestOptions) => Promise<T.Passkey>
      /** Your passkeys. `GET /user/passkeys` */
      list: (options?: RequestOptions) => Promise<T.UserPasskeysListResponse>
      /** Remove a passkey. `DELETE /user/passkeys/{passkey_id}` */
      remove: (passkey_id: string, options?: RequestOptions) => Promise<T.Deleted>
    }
    identities: {
      /** How the OpenID provider knows you, the oldest connection first. `GET /user/identities` */
      list: (options?: RequestOptions) => Promise<T.Identities>
      /** Remove your connection to the OpenID provider; your other sessions that it began end. `DELETE /user/identities/{identity_id}` */
      remove: (identity_id: string, options?: RequestOptions) => Promise<T.Deleted>
    }
  }
  signIn: {
    /** The ways to sign in to this service. `GET /sign-in` */
    ways: (options?: RequestOptions) => Promise<T.SignInWaysResponse>
    /** Begin a session with email and password. `POST /sign-in/password` */
    withPassword: (body: T.SignInWithPasswordBody, options?: RequestOptions) => Promise<T.SignInWithPasswordResponse>
    /** Begin a session with a sign-in link, which works once. `POST /sign-in/link` */
    withLink: (body: T.SignInWithLinkBody, options?: RequestOptions) => Promise<T.SignInWithPasswordResponse>
    /** What a browser needs to sign in with a passkey. `POST /sign-in/passkey/options` */
    passkeyOptions: (options?: RequestOptions) => Promise<T.UserPasskeysOptionsResponse>
    /** Begin a session with a passkey. `POST /sign-in/passkey` */
    withPasskey: (body: T.SignInWithPasskeyBody, options?: RequestOptions) => Promise<T.SignInWithPasswordResponse>
    /** The accounts to which a person who comes from the OpenID provider may go, if they must choose. `GET /sign-in/oidc/accounts` */
    accounts: (options?: RequestOptions) => Promise<T.SignInAccountsResponse>
    /** Begin a session in one of these accounts; from now on the provider signs in there. `POST /sign-in/oidc/accounts` */
    chooseAccount: (body: T.SignInChooseAccountBody, options?: RequestOptions) => Promise<T.SignInChooseAccountResponse>
    /** What an invitation invites to. `POST /sign-in/invitation/look` */
    lookAtInvitation: (body: T.SignInLookAtInvitationBody, options?: RequestOptions) => Promise<T.SignInLookAtInvitationResponse>
    /** Accept an invitation, set a password, and begin a session. `POST /sign-in/invitation` */
    acceptInvitation: (body: T.SignInAcceptInvitationBody, options?: RequestOptions) => Promise<T.SignInWithPasswordResponse>
  }
  session: {
    /** The session that asks, and its person. `GET /session` */
    get: (options?: RequestOptions) => Promise<T.SessionState>
    /** Sign out. `DELETE /session` */
    end: (options?: RequestOptions) => Promise<T.Deleted>
  }
  sessions: {
    /** Your sessions, the latest first. `GET /sessions` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Session>
    /** End one of your sessions. `DELETE /sessions/{session_id}` */
    end: (session_id: string, options?: RequestOptions) => Promise<T.Deleted>
    /** End all your sessions but the one that asks. `DELETE /sessions` */
    endOthers: (options?: RequestOptions) => Promise<T.SessionsEndOthersResponse>
  }
  invitations: {
    /** Add a member, and make a link with which they sign in; it is shown once, and works once within 7 days. `POST /invitations` */
    create: (body: T.InvitationsCreateBody, options?: RequestOptions) => Promise<T.InvitationsCreateResponse>
    /** Invitations that nobody has accepted yet, newest first. `GET /invitations` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Invitation>
    /** Withdraw an invitation: its link stops working; the member stays until they are removed. `DELETE /invitations/{invitation_id}` */
    withdraw: (invitation_id: string, options?: RequestOptions) => Promise<T.Deleted>
  }
  audit: {
    /** What was changed in the account and by whom, newest first. `GET /audit` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.AuditEntry>
  }
  keys: {
    /** Make an API key; it is shown once. `POST /keys` */
    create: (body: T.KeysCreateBody, options?: RequestOptions) => Promise<T.NewApiKey>
    /** Your keys, newest first; with `members:write`, those of all members. `GET /keys` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.ApiKey>
    /** One key. `GET /keys/{key_id}` */
    get: (key_id: string, options?: RequestOptions) => Promise<T.ApiKey>
    /** Rename a key. `PUT /keys/{key_id}` */
    rename: (key_id: string, body: T.KeysRenameBody, options?: RequestOptions) => Promise<T.ApiKey>
    /** Revoke a key permanently; requests with it are refused within a second. `DELETE /keys/{key_id}` */
    revoke: (key_id: string, options?: RequestOptions) => Promise<T.Deleted>
  }
  members: {
    /** Add a member to the account; `POST /keys` with the member’s id makes a key for them. `POST /members` */
    add: (body: T.MembersAddBody, options?: RequestOptions) => Promise<T.Member>
    /** The members of the account, newest first. `GET /members` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Member>
    /** One member. `GET /members/{user_id}` */
    get: (user_id: string, options?: RequestOptions) => Promise<T.Member>
    /** Change a member’s name, email or role; the member’s keys lose the scopes of the old role within a second. `PUT /members/{user_id}` */
    update: (user_id: string, body: T.MembersUpdateBody, options?: RequestOptions) => Promise<T.Member>
    /** Remove a member and revoke their keys; what they made stays the account’s. `DELETE /members/{user_id}` */
    remove: (user_id: string, options?: RequestOptions) => Promise<T.Deleted>
    identities: {
      /** Who signs in as a member by the OpenID provider, the oldest connection first. `GET /members/{user_id}/identities` */
      list: (user_id: string, options?: RequestOptions) => Promise<T.Identities>
      /** Remove a member’s connection to the OpenID provider and end the sessions that it began; change the email too if it is not theirs. `DELETE /members/{user_id}/identities/{identity_id}` */
      remove: (user_id: string, identity_id: string, options?: RequestOptions) => Promise<T.Deleted>
    }
  }
  operator: {
    /** The machine: memory, disk, GPUs, engine, queues, replicas and set-up. `GET /operator/machine` */
    machine: (options?: RequestOptions) => Promise<T.Machine>
    /** What each account used on a day, most requests first. `GET /operator/usage` */
    usage: (query?: T.OperatorUsageQuery, options?: RequestOptions) => Promise<T.OperatorUsageResponse>
    accounts: {
      /** Make an account with its owner and the owner’s first key, which is shown once. `POST /operator/accounts` */
      create: (body: T.OperatorAccountsCreateBody, options?: RequestOptions) => Promise<T.OperatorAccountsCreateResponse>
      /** All accounts, newest first. `GET /operator/accounts` */
      list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Account>
      /** One account. `GET /operator/accounts/{account_id}` */
      get: (account_id: string, options?: RequestOptions) => Promise<T.Account>
      /** Rename an account, set its tier, suspend or reinstate it; requests of a suspended account are refused within a second, and its jobs wait. `PUT /operator/accounts/{account_id}` */
      update: (account_id: string, body: T.OperatorAccountsUpdateBody, options?: RequestOptions) => Promise<T.Account>
    }
  }
  usage: {
    /** What the account used and what it cost, by day, model, key or kind. `GET /usage` */
    get: (query?: T.UsageQueryInput, options?: RequestOptions) => Promise<T.UsageReport>
    /** How much the account stores, and how much it may. `GET /usage/storage` */
    storage: (options?: RequestOptions) => Promise<T.StorageReport>
    /** Requests, errors, tokens and latency of one model name over time. `GET /usage/timeline` */
    timeline: (query: T.TimelineQuery, options?: RequestOptions) => Promise<T.Timeline>
    thresholds: {
      /** Thresholds of usage at which the account gets events. `GET /usage/thresholds` */
      get: (options?: RequestOptions) => Promise<T.UsageThresholdsGetResponse>
      /** Set the usage thresholds. `PUT /usage/thresholds` */
      set: (body: T.ThresholdsInput, options?: RequestOptions) => Promise<T.UsageThresholdsGetResponse>
    }
  }
  hub: {
    /** The base models, searched, filtered and sorted. `GET /hub/` */
    list: (query?: T.ModelsQuery, options?: RequestOptions) => Promise<T.HubListResponse>
    /** One base model; its id may be written with plain or encoded slashes. `GET /hub/models/{model_id}` */
    get: (model_id: string, options?: RequestOptions) => Promise<T.Model>
    /** The tiers and their limits. `GET /hub/tiers` */
    tiers: (options?: RequestOptions) => Promise<T.HubTiersResponse>
    /** Base models to begin with. `GET /hub/featured` */
    featured: (options?: RequestOptions) => Promise<T.HubListResponse>
    /** What this machine has for base models, and the base recommended for it and for classes of machines. `GET /hub/machine` */
    machine: (options?: RequestOptions) => Promise<T.HubMachine>
    /** Download the weights of a base model to this machine; one that is here or in progress is left as it is. `POST /hub/models/{model_id}/download` */
    startDownload: (model_id: string, options?: RequestOptions) => Promise<T.Model>
    /** Cancel a download and remove what it has brought. `DELETE /hub/models/{model_id}/download` */
    cancelDownload: (model_id: string, options?: RequestOptions) => Promise<T.Model>
    setup: {
      /** How far the set-up of the training environment is, which continues behind the first start. `GET /hub/setup` */
      get: (options?: RequestOptions) => Promise<T.TrainingSetup>
      /** Start the set-up of the training environment again after it has failed. `POST /hub/setup/retry` */
      retry: (options?: RequestOptions) => Promise<T.TrainingSetup>
    }
  }
  datasets: {
    /** Upload a file of examples. `POST /datasets/` */
    upload: (file: FileInput, form?: T.UploadFieldsInput, options?: RequestOptions) => Promise<T.Dataset>
    /** The datasets of the account, newest first or as sorted. `GET /datasets/` */
    list: (query?: T.SortedQueryInput, options?: RequestOptions) => PagePromise<T.Dataset>
    /** One dataset. `GET /datasets/{dataset_id}` */
    get: (dataset_id: string, options?: RequestOptions) => Promise<T.Dataset>
    /** Change the name or the description of a dataset. `PATCH /datasets/{dataset_id}` */
    update: (dataset_id: string, body: T.DatasetsUpdateBody, options?: RequestOptions) => Promise<T.Dataset>
    /** Delete a dataset that no waiting or running job needs. `DELETE /datasets/{dataset_id}` */
    delete: (dataset_id: string, options?: RequestOptions) => Promise<T.Deleted>
    /** Check whether every row can be trained on, and list what is wrong. `POST /datasets/{dataset_id}/validate` */
    validate: (dataset_id: string, query?: T.DatasetsValidateQuery, options?: RequestOptions) => Promise<T.Validation>
    /** The rows of a dataset as conversations, in their order. `GET /datasets/{dataset_id}/rows` */
    rows: (dataset_id: string, query?: T.RowsQueryInput, options?: RequestOptions) => PagePromise<T.DatasetRow>
    /** The exact tokens of a row as the trainer will see them, and which of them are learned. `GET /datasets/{dataset_id}/preview` */
    preview: (dataset_id: string, query?: T.DatasetsPreviewQuery, options?: RequestOptions) => Promise<T.Preview>
    /** Make a dataset of stored answers. `POST /datasets/from-completions` */
    fromCompletions: (body: T.DatasetOfStoredInput, options?: RequestOptions) => Promise<T.Dataset>
  }
  jobs: {
    /** Start a fine-tuning job. `POST /fine-tuning/jobs` */
    create: (body: T.CreateJobInput, options?: RequestOptions) => Promise<T.Job>
    /** What a job would take: a few of its steps are tried on this machine, which takes some seconds. `POST /fine-tuning/jobs/estimate` */
    estimate: (body: T.CreateJobInput, options?: RequestOptions) => Promise<T.JobEstimate>
    /** The jobs of the account, newest first or as sorted. `GET /fine-tuning/jobs` */
    list: (query?: T.JobQueryInput, options?: RequestOptions) => PagePromise<T.Job>
    /** One job. `GET /fine-tuning/jobs/{job_id}` */
    get: (job_id: string, options?: RequestOptions) => Promise<T.Job>
    /** Change the name, description or metadata of a job; its model keeps its own. `PATCH /fine-tuning/jobs/{job_id}` */
    update: (job_id: string, body: T.Labels, options?: RequestOptions) => Promise<T.Job>
    /** Cancel a queued or running job. `POST /fine-tuning/jobs/{job_id}/cancel` */
    cancel: (job_id: string, options?: RequestOptions) => Promise<T.Job>
    /** Delete a job that has ended, with its events and curves; its models stay, with their origin. `DELETE /fine-tuning/jobs/{job_id}` */
    delete: (job_id: string, options?: RequestOptions) => Promise<T.Deleted>
    /** Pause a job and save its progress. `POST /fine-tuning/jobs/{job_id}/pause` */
    pause: (job_id: string, options?: RequestOptions) => Promise<T.Job>
    /** Resume a paused job exactly where it stopped. `POST /fine-tuning/jobs/{job_id}/resume` */
    resume: (job_id: string, options?: RequestOptions) => Promise<T.Job>
    /** The events of a job, one JSON object a line, live until the job has ended. `GET /fine-tuning/jobs/{job_id}/events` */
    events: (job_id: string, query?: T.JobsEventsQuery, options?: RequestOptions) => AsyncGenerator<T.JobEvent, void, undefined>
    /** Evaluations of a job on its held-out rows, the latest step first, also while it runs. `GET /fine-tuning/jobs/{job_id}/evaluations` */
    evaluations: (job_id: string, query?: T.JobsEvaluationsQuery, options?: RequestOptions) => PagePromise<T.JobEvaluation>
    /** Checkpoints of a job, the latest step first, also while it runs; once completed, with the models that were kept. `GET /fine-tuning/jobs/{job_id}/checkpoints` */
    checkpoints: (job_id: string, query?: T.JobsEvaluationsQuery, options?: RequestOptions) => PagePromise<T.JobCheckpoint>
    /** The rows that a completed job found strangest, worst first: where to look for wrong examples. `GET /fine-tuning/jobs/{job_id}/rows` */
    rows: (job_id: string, query?: T.RowsQueryInput, options?: RequestOptions) => PagePromise<T.JobRow>
    /** The rows that a job does not learn from but is evaluated on: those that it held out of its dataset, known once its training begins, or all of its validation dataset; none if it is not evaluated. `GET /fine-tuning/jobs/{job_id}/held-out` */
    heldOut: (job_id: string, query?: T.RowsQueryInput, options?: RequestOptions) => PagePromise<T.HeldOutRow>
    rollouts: {
      /** The steps of a job with `reinforcement` whose answers can be read, the latest first, also while it runs: 200 of its steps, and as many of its evaluations. `GET /fine-tuning/jobs/{job_id}/rollouts` */
      list: (job_id: string, query?: T.JobsEvaluationsQuery, options?: RequestOptions) => PagePromise<T.RolloutStep>
      /** Answers of a step, with the score of each grader. `GET /fine-tuning/jobs/{job_id}/rollouts/{step}` */
      get: (job_id: string, step: string, options?: RequestOptions) => Promise<T.StepRollouts>
    }
  }
  models: {
    /** Bring a LoRA adapter of your own: a zip of its PEFT folder, in safetensors. `POST /fine-tuning/models` */
    import: (file: FileInput, form?: T.AdapterFields, options?: RequestOptions) => Promise<T.TunedModel>
    /** The models of the account, newest first or as sorted. `GET /fine-tuning/models` */
    list: (query?: T.SortedQueryInput, options?: RequestOptions) => PagePromise<T.TunedModel>
    /** One model of the account, with its lineage. `GET /fine-tuning/models/{model_id}` */
    get: (model_id: string, options?: RequestOptions) => Promise<T.TunedModelDetails>
    /** Change the name, description or metadata of a model. `PATCH /fine-tuning/models/{model_id}` */
    update: (model_id: string, body: T.Labels, options?: RequestOptions) => Promise<T.TunedModel>
    /** Delete a model that no deployment, job or other model needs. `DELETE /fine-tuning/models/{model_id}` */
    delete: (model_id: string, options?: RequestOptions) => Promise<T.Deleted>
    shares: {
      /** Make a link to a page of the model, for people without an account; it is shown once. `POST /fine-tuning/models/{model_id}/shares` */
      create: (model_id: string, body: T.CreateShareInput, options?: RequestOptions) => Promise<T.ModelsSharesCreateResponse>
      /** The links to the page of a model that were not withdrawn, newest first. `GET /fine-tuning/models/{model_id}/shares` */
      list: (model_id: string, query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Share>
      /** Withdraw a link: it works no more from now on. `DELETE /fine-tuning/models/{model_id}/shares/{share_id}` */
      delete: (model_id: string, share_id: string, options?: RequestOptions) => Promise<T.Deleted>
    }
    callable: {
      /** Everything that the `model` field of inference takes. `GET /models` */
      list: (options?: RequestOptions) => Promise<T.ModelList>
      /** One of them. `GET /models/{model_id}` */
      get: (model_id: string, options?: RequestOptions) => Promise<T.ModelCard>
    }
  }
  share: {
    /** What a link shows: the model, its evaluation, and how much it may still be asked. `POST /share/look` */
    look: (body: T.ShareLookBody, options?: RequestOptions) => Promise<T.SharedModel>
    /** Ask the model of a link, within its bounds; one request at a time. `POST /share/chat` */
    chat: {
      (body: T.SharedChat & { stream: true }, options?: RequestOptions): Promise<EventStream<T.ChatChunk>>
      (body: T.SharedChat & { stream?: false | null }, options?: RequestOptions): Promise<T.ChatResponse>
      (body: T.SharedChat, options?: RequestOptions): Promise<T.ChatResponse | EventStream<T.ChatChunk>>
    }
  }
  deployments: {
    /** Serve a model by name. `POST /deployments` */
    create: (body: T.DeploymentsCreateBody, options?: RequestOptions) => Promise<T.Deployment>
    /** Let the name serve another model, at once or once a gate passes; running requests finish on the old one. `PUT /deployments/{name}` */
    switch: (name: string, body: T.DeploymentsSwitchBody, options?: RequestOptions) => Promise<T.Deployment>
    /** The deployments of the account, newest first or as sorted. `GET /deployments` */
    list: (query?: T.DeploymentQueryInput, options?: RequestOptions) => PagePromise<T.Deployment>
    /** One deployment. `GET /deployments/{name}` */
    get: (name: string, options?: RequestOptions) => Promise<T.Deployment>
    /** Return to the model that the name served before. `POST /deployments/{name}/rollback` */
    rollback: (name: string, options?: RequestOptions) => Promise<T.Deployment>
    /** What the name served when, and why, newest first. `GET /deployments/{name}/history` */
    history: (name: string, query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.DeploymentChange>
    /** Requests, errors, tokens and latency of a deployment over time. `GET /deployments/{name}/metrics` */
    metrics: (name: string, query?: T.PeriodQuery, options?: RequestOptions) => Promise<T.Timeline>
    scaling: {
      /** Give a deployment dedicated replicas, as many as its load takes. `PUT /deployments/{name}/scaling` */
      set: (name: string, body: T.ScalingRequestInput, options?: RequestOptions) => Promise<T.Scaling>
      /** How a deployment scales: its replicas, and each decision and why. `GET /deployments/{name}/scaling` */
      get: (name: string, options?: RequestOptions) => Promise<T.Scaling>
      /** Let the engine of the machine serve a deployment again; its replicas end their requests. `DELETE /deployments/{name}/scaling` */
      remove: (name: string, options?: RequestOptions) => Promise<T.Deleted>
    }
    /** Stop serving a name. `DELETE /deployments/{name}` */
    delete: (name: string, options?: RequestOptions) => Promise<T.Deleted>
  }
  graders: {
    /** Score one answer by a grader. `POST /fine_tuning/alpha/graders/run` */
    run: (body: T.RunGraderInput, options?: RequestOptions) => Promise<T.GraderRun>
    /** Check a grader: its templates, patterns, source, address and judges. `POST /fine_tuning/alpha/graders/validate` */
    validate: (body: T.GradersValidateBody, options?: RequestOptions) => Promise<T.GradersValidateResponse>
    /** The secret that signs requests to endpoints of graders with this `secret_name`. `GET /graders/secrets/{name}` */
    secret: (name: string, options?: RequestOptions) => Promise<T.GradersSecretResponse>
  }
  evaluations: {
    /** Let a model answer the rows of a dataset, and score its answers, beside those of a baseline. `POST /evaluations` */
    create: (body: T.CreateEvaluationInput, options?: RequestOptions) => Promise<T.Evaluation>
    /** The evaluations of the account, newest first. `GET /evaluations` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Evaluation>
    /** One evaluation, with the result so far. `GET /evaluations/{evaluation_id}` */
    get: (evaluation_id: string, options?: RequestOptions) => Promise<T.Evaluation>
    /** The answers and their scores: what got worse first. `GET /evaluations/{evaluation_id}/rows` */
    rows: (evaluation_id: string, query?: T.RowsQueryInput, options?: RequestOptions) => PagePromise<T.EvaluationRow>
    /** Cancel an evaluation; what is scored is kept. `POST /evaluations/{evaluation_id}/cancel` */
    cancel: (evaluation_id: string, options?: RequestOptions) => Promise<T.Evaluation>
    /** Delete an evaluation that has ended, with its answers. `DELETE /evaluations/{evaluation_id}` */
    delete: (evaluation_id: string, options?: RequestOptions) => Promise<T.Deleted>
  }
  exports: {
    /** Make files of a model to take away; they are checked against the training before they are ready. `POST /exports` */
    create: (body: T.CreateExportInput, options?: RequestOptions) => Promise<T.Export>
    /** The exports of the account, newest first or as ordered. `GET /exports` */
    list: (query?: T.ExportQueryInput, options?: RequestOptions) => PagePromise<T.Export>
    /** One export. `GET /exports/{export_id}` */
    get: (export_id: string, options?: RequestOptions) => Promise<T.Export>
    /** The events of an export, one JSON object a line, live until it has ended. `GET /exports/{export_id}/events` */
    events: (export_id: string, query?: T.ExportsEventsQuery, options?: RequestOptions) => AsyncGenerator<T.ExportEvent, void, undefined>
    /** A file of an export. Takes `Range` and `If-Range`; the `ETag` is its SHA-256. With an S3 storage it redirects to a presigned URL of the bucket, unless the request has a condition. `GET /exports/{export_id}/download` */
    download: (export_id: string, query?: T.ExportsDownloadQuery, options?: RequestOptions) => Promise<FileResponse>
    /** Delete an export and its files; one that is being made is cancelled. `DELETE /exports/{export_id}` */
    delete: (export_id: string, options?: RequestOptions) => Promise<T.Deleted>
  }
  webhooks: {
    /** Register a URL for events; each is posted to it, signed. `POST /webhooks` */
    create: (body: T.WebhooksCreateBody, options?: RequestOptions) => Promise<T.NewWebhook>
    /** The webhooks of the account, newest first, without their secrets. `GET /webhooks` */
    list: (query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Webhook>
    /** One webhook. `GET /webhooks/{webhook_id}` */
    get: (webhook_id: string, options?: RequestOptions) => Promise<T.Webhook>
    /** Change the URL or the events, disable a webhook, or enable it again, which also ends its being slowed. `PUT /webhooks/{webhook_id}` */
    update: (webhook_id: string, body: T.WebhooksUpdateBody, options?: RequestOptions) => Promise<T.Webhook>
    /** Delete a webhook with its deliveries. `DELETE /webhooks/{webhook_id}` */
    delete: (webhook_id: string, options?: RequestOptions) => Promise<T.Deleted>
    /** Give a webhook another secret; those before it stay in force for the overlap. `POST /webhooks/{webhook_id}/rotate` */
    rotateSecret: (webhook_id: string, body?: T.WebhooksRotateSecretBody, options?: RequestOptions) => Promise<T.NewWebhook>
    /** Send an event `webhook.test` to this webhook alone, in one try, also where it is slowed or disabled. `POST /webhooks/{webhook_id}/test` */
    test: (webhook_id: string, options?: RequestOptions) => Promise<T.Delivery>
    deliveries: {
      /** What was sent to a webhook, or is to be, newest first. `GET /webhooks/{webhook_id}/deliveries` */
      list: (webhook_id: string, query?: T.ListQueryInput, options?: RequestOptions) => PagePromise<T.Delivery>
      /** One delivery with its body and every try. `GET /webhooks/{webhook_id}/deliveries/{delivery_id}` */
      get: (webhook_id: string, delivery_id: string, options?: RequestOptions) => Promise<T.DeliveryDetails>
      /** Send the same event once more, as another delivery. `POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver` */
      redeliver: (webhook_id: string, delivery_id: string, options?: RequestOptions) => Promise<T.Delivery>
    }
  }
  chat: {
    completions: {
      /** Answer a conversation, whole or as a stream. `POST /chat/completions` */
      create: {
        (body: T.ChatRequest & { stream: true }, options?: RequestOptions): Promise<EventStream<T.ChatChunk>>
        (body: T.ChatRequest & { stream?: false | null }, options?: RequestOptions): Promise<T.ChatResponse>
        (body: T.ChatRequest, options?: RequestOptions): Promise<T.ChatResponse | EventStream<T.ChatChunk>>
      }
      /** Answer many conversations at once. `POST /chat/completions/batch` */
      batch: (body: T.BatchRequest, options?: RequestOptions) => Promise<T.BatchResponse>
      /** The answers that the account keeps. `GET /chat/completions` */
      list: (query?: T.StoredQueryInput, options?: RequestOptions) => PagePromise<T.StoredCompletion>
      /** One stored answer. `GET /chat/completions/{completion_id}` */
      get: (completion_id: string, options?: RequestOptions) => Promise<T.StoredCompletion>
      /** The messages that a stored answer was asked with. `GET /chat/completions/{completion_id}/messages` */
      messages: (completion_id: string, query?: T.ChatCompletionsMessagesQuery, options?: RequestOptions) => PagePromise<T.StoredMessage>
      /** Change the metadata of a stored answer, such as what people thought of it. `POST /chat/completions/{completion_id}` */
      update: (completion_id: string, body: T.ChatCompletionsUpdateBody, options?: RequestOptions) => Promise<T.StoredCompletion>
      /** Delete a stored answer for good. `DELETE /chat/completions/{completion_id}` */
      delete: (completion_id: string, options?: RequestOptions) => Promise<T.ChatCompletionsDeleteResponse>
      /** Delete all stored answers that match a filter, for good. `POST /chat/completions/delete` */
      deleteMany: (body: T.ChatCompletionsDeleteManyBody, options?: RequestOptions) => Promise<T.ChatCompletionsDeleteManyResponse>
    }
  }
  completions: {
    /** Continue a text, whole or as a stream. `POST /completions` */
    create: {
      (body: T.CompletionRequest & { stream: true }, options?: RequestOptions): Promise<EventStream<T.CompletionResponse>>
      (body: T.CompletionRequest & { stream?: false | null }, options?: RequestOptions): Promise<T.CompletionResponse>
      (body: T.CompletionRequest, options?: RequestOptions): Promise<T.CompletionResponse | EventStream<T.CompletionResponse>>
    }
  }
  embeddings: {
    /** Turn texts into vectors. `POST /embeddings` */
    create: (body: T.EmbeddingsRequest, options?: RequestOptions) => Promise<T.EmbeddingsResponse>
  }
  responses: {
    /** Answer a list of items, as OpenAI's Responses API does. `POST /responses` */
    create: {
      (body: T.ResponseRequest & { stream: true }, options?: RequestOptions): Promise<EventStream<ResponseEvent>>
      (body: T.ResponseRequest & { stream?: false | null }, options?: RequestOptions): Promise<T.ResponseObject>
      (body: T.ResponseRequest, options?: RequestOptions): Promise<T.ResponseObject | EventStream<ResponseEvent>>
    }
    /** A stored response. `GET /responses/{response_id}` */
    get: (response_id: string, query?: T.ResponsesGetQuery, options?: RequestOptions) => Promise<T.ResponseObject>
    /** The items that a stored response answers, those of earlier turns among them. `GET /responses/{response_id}/input_items` */
    inputItems: (response_id: string, query?: T.ResponsesInputItemsQuery, options?: RequestOptions) => PagePromise<T.ResponsesInputItemsResponse['data'][number]>
    /** Delete a stored response. `DELETE /responses/{response_id}` */
    delete: (response_id: string, options?: RequestOptions) => Promise<T.ResponsesDeleteResponse>
  }
  batches: {
    /** Answer the requests of a file in the background, after all live requests. `POST /batches` */
    create: (body: T.CreateBatch, options?: RequestOptions) => Promise<T.Batch>
    /** The batches of the account, newest first. `GET /batches` */
    list: (query?: T.CursorQueryInput, options?: RequestOptions) => PagePromise<T.Batch>
    /** One batch. `GET /batches/{batch_id}` */
    get: (batch_id: string, options?: RequestOptions) => Promise<T.Batch>
    /** Cancel a batch; what is answered already is kept. `POST /batches/{batch_id}/cancel` */
    cancel: (batch_id: string, options?: RequestOptions) => Promise<T.Batch>
  }
  files: {
    /** Upload a file; one for `fine-tune` is also a dataset. `POST /files` */
    upload: (file: FileInput, form?: T.FileFields, options?: RequestOptions) => Promise<T.FileObject>
    /** The files of the account, its datasets among them. `GET /files` */
    list: (query?: T.FileQueryInput, options?: RequestOptions) => PagePromise<T.FileObject>
    /** One file. `GET /files/{file_id}` */
    get: (file_id: string, options?: RequestOptions) => Promise<T.FileObject>
    /** The bytes of a file, whole or a range of them. `GET /files/{file_id}/content` */
    content: (file_id: string, options?: RequestOptions) => Promise<FileResponse>
    /** Delete a file that no job or batch needs. `DELETE /files/{file_id}` */
    delete: (file_id: string, options?: RequestOptions) => Promise<T.FilesDeleteResponse>
  }
  uploads: {
    /** Begin to upload a large file in parts. `POST /uploads` */
    create: (body: T.CreateUpload, options?: RequestOptions) => Promise<T.Upload>
    /** Add a part of up to 64 MiB; parts may be sent in any order and at once. `POST /uploads/{upload_id}/parts` */
    addPart: (upload_id: string, file: FileInput, form?: T.UploadsAddPartFields, options?: RequestOptions) => Promise<T.UploadPart>
    /** Join the parts, in the order that is given here, to a file. `POST /uploads/{upload_id}/complete` */
    complete: (upload_id: string, body: T.UploadsCompleteBody, options?: RequestOptions) => Promise<T.Upload>
    /** Give up an upload and delete its parts. `POST /uploads/{upload_id}/cancel` */
    cancel: (upload_id: string, options?: RequestOptions) => Promise<T.Upload>
  }
  evals: {
    /** Create an eval: graders, and what rows they are for. `POST /evals` */
    create: (body: T.CreateEvalInput, options?: RequestOptions) => Promise<T.Eval>
    /** The evals of the account. `GET /evals` */
    list: (query?: T.EvalQueryInput, options?: RequestOptions) => PagePromise<T.Eval>
    /** One eval. `GET /evals/{eval_id}` */
    get: (eval_id: string, options?: RequestOptions) => Promise<T.Eval>
    /** Change the name or the metadata of an eval. `POST /evals/{eval_id}` */
    update: (eval_id: string, body: T.UpdateEval, options?: RequestOptions) => Promise<T.Eval>
    /** Delete an eval with its runs, none of which may be running. `DELETE /evals/{eval_id}` */
    delete: (eval_id: string, options?: RequestOptions) => Promise<T.EvalsDeleteResponse>
    runs: {
      /** Let a model answer rows, or take the answers that they bring, and grade them. `POST /evals/{eval_id}/runs` */
      create: (eval_id: string, body: T.CreateRun, options?: RequestOptions) => Promise<T.Run>
      /** The runs of an eval. `GET /evals/{eval_id}/runs` */
      list: (eval_id: string, query?: T.RunQueryInput, options?: RequestOptions) => PagePromise<T.Run>
      /** One run, with the result so far. `GET /evals/{eval_id}/runs/{run_id}` */
      get: (eval_id: string, run_id: string, options?: RequestOptions) => Promise<T.Run>
      /** Cancel a run; what is graded is kept. `POST /evals/{eval_id}/runs/{run_id}/cancel` */
      cancel: (eval_id: string, run_id: string, options?: RequestOptions) => Promise<T.Run>
      /** Delete a run that has ended. `DELETE /evals/{eval_id}/runs/{run_id}` */
      delete: (eval_id: string, run_id: string, options?: RequestOptions) => Promise<T.EvalsRunsDeleteResponse>
      outputItems: {
        /** The answers of a run and their grades, by row. `GET /evals/{eval_id}/runs/{run_id}/output_items` */
        list: (eval_id: string, run_id: string, query?: T.OutputItemQueryInput, options?: RequestOptions) => PagePromise<T.OutputItem>
        /** One answer and its grades. `GET /evals/{eval_id}/runs/{run_id}/output_items/{output_item_id}` */
        get: (eval_id: string, run_id: string, output_item_id: string, options?: RequestOptions) => Promise<T.OutputItem>
      }
    }
  }
  openaiFineTuning: {
    jobs: {
      /** Start a fine-tuning job. `POST /fine_tuning/jobs` */
      create: (body: T.CreateOpenaiJobInput, options?: RequestOptions) => Promise<T.OpenaiJob>
      /** The jobs of the account, newest first. `GET /fine_tuning/jobs` */
      list: (query?: T.MetadataQueryInput, options?: RequestOptions) => PagePromise<T.OpenaiJob>
      /** One job. `GET /fine_tuning/jobs/{job_id}` */
      get: (job_id: string, options?: RequestOptions) => Promise<T.OpenaiJob>
      /** Cancel a job. `POST /fine_tuning/jobs/{job_id}/cancel` */
      cancel: (job_id: string, options?: RequestOptions) => Promise<T.OpenaiJob>
      /** Pause a job and save its progress. `POST /fine_tuning/jobs/{job_id}/pause` */
      pause: (job_id: string, options?: RequestOptions) => Promise<T.OpenaiJob>
      /** Resume a paused job exactly where it stopped. `POST /fine_tuning/jobs/{job_id}/resume` */
      resume: (job_id: string, options?: RequestOptions) => Promise<T.OpenaiJob>
      /** The events of a job, newest first. `GET /fine_tuning/jobs/{job_id}/events` */
      events: (job_id: string, query?: T.CursorQueryInput, options?: RequestOptions) => PagePromise<T.OpenaiJobEvent>
      /** The checkpoints of a completed job that are models, the latest first. `GET /fine_tuning/jobs/{job_id}/checkpoints` */
      checkpoints: (job_id: string, query?: T.OpenaiFineTuningJobsCheckpointsQuery, options?: RequestOptions) => PagePromise<T.OpenaiCheckpoint>
    }
    /** Delete a fine-tuned model that no deployment, job or other model needs. `DELETE /models/{model_id}` */
    deleteModel: (model_id: string, options?: RequestOptions) => Promise<T.OpenaiFineTuningDeleteModelResponse>
    permissions: {
      /** Who else may use a checkpoint: nobody, as models belong to one account. `GET /fine_tuning/checkpoints/{checkpoint}/permissions` */
      list: (checkpoint: string, options?: RequestOptions) => PagePromise<T.OpenaiFineTuningPermissionsListResponse['data'][number]>
      /** Refused: models cannot be shared with other accounts. `POST /fine_tuning/checkpoints/{checkpoint}/permissions` */
      create: (checkpoint: string, body: T.OpenaiFineTuningPermissionsCreateBody, options?: RequestOptions) => Promise<T.OpenaiFineTuningPermissionsCreateResponse>
      /** There is never one to delete. `DELETE /fine_tuning/checkpoints/{checkpoint}/permissions/{permission_id}` */
      delete: (checkpoint: string, permission_id: string, options?: RequestOptions) => Promise<T.OpenaiFineTuningPermissionsDeleteResponse>
    }
  }
}

/** Method, path, how the response is read, and where the last argument goes. */
export const operations = {
  user: {
    profile: 'GET /user/profile',
    presence: 'GET /user/presence query',
    update: 'PATCH /user body',
    setPassword: 'PUT /user/password body',
    passkeys: {
      options: 'POST /user/passkeys/options',
      add: 'POST /user/passkeys body',
      list: 'GET /user/passkeys',
      remove: 'DELETE /user/passkeys/{passkey_id}',
    },
    identities: { list: 'GET /user/identities', remove: 'DELETE /user/identities/{identity_id}' },
  },
  signIn: {
    ways: 'GET /sign-in',
    withPassword: 'POST /sign-in/password body',
    withLink: 'POST /sign-in/link body',
    passkeyOptions: 'POST /sign-in/passkey/options',
    withPasskey: 'POST /sign-in/passkey body',
    accounts: 'GET /sign-in/oidc/accounts',
    chooseAccount: 'POST /sign-in/oidc/accounts body',
    lookAtInvitation: 'POST /sign-in/invitation/look body',
    acceptInvitation: 'POST /sign-in/invitation body',
  },
  session: { get: 'GET /session', end: 'DELETE /session' },
  sessions: {
    list: 'GET /sessions page query',
    end: 'DELETE /sessions/{session_id}',
    endOthers: 'DELETE /sessions',
  },
  invitations: {
    create: 'POST /invitations body',
    list: 'GET /invitations page query',
    withdraw: 'DELETE /invitations/{invitation_id}',
  },
  audit: { list: 'GET /audit page query' },
  keys: {
    create: 'POST /keys body',
    list: 'GET /keys page query',
    get: 'GET /keys/{key_id}',
    rename: 'PUT /keys/{key_id} body',
    revoke: 'DELETE /keys/{key_id}',
  },
  members: {
    add: 'POST /members body',
    list: 'GET /members page query',
    get: 'GET /members/{user_id}',
    update: 'PUT /members/{user_id} body',
    remove: 'DELETE /members/{user_id}',
    identities: {
      list: 'GET /members/{user_id}/identities',
      remove: 'DELETE /members/{user_id}/identities/{identity_id}',
    },
  },
  operator: {
    machine: 'GET /operator/machine',
    usage: 'GET /operator/usage query',
    accounts: {
      create: 'POST /operator/accounts body',
      list: 'GET /operator/accounts page query',
      get: 'GET /operator/accounts/{account_id}',
      update: 'PUT /operator/accounts/{account_id} body',
    },
  },
  usage: {
    get: 'GET /usage query',
    storage: 'GET /usage/storage',
    timeline: 'GET /usage/timeline query',
    thresholds: { get: 'GET /usage/thresholds', set: 'PUT /usage/thresholds body' },
  },
  hub: {
    list: 'GET /hub/ query',
    get: 'GET /hub/models/{model_id}',
    tiers: 'GET /hub/tiers',
    featured: 'GET /hub/featured',
    machine: 'GET /hub/machine',
    startDownload: 'POST /hub/models/{model_id}/download',
    cancelDownload: 'DELETE /hub/models/{model_id}/download',
    setup: { get: 'GET /hub/setup', retry: 'POST /hub/setup/retry' },
  },
  datasets: {
    upload: 'POST /datasets/ form:file',
    list: 'GET /datasets/ page query',
    get: 'GET /datasets/{dataset_id}',
    update: 'PATCH /datasets/{dataset_id} body',
    delete: 'DELETE /datasets/{dataset_id}',
    validate: 'POST /datasets/{dataset_id}/validate query',
    rows: 'GET /datasets/{dataset_id}/rows page query',
    preview: 'GET /datasets/{dataset_id}/preview query',
    fromCompletions: 'POST /datasets/from-completions body',
  },
  jobs: {
    create: 'POST /fine-tuning/jobs body',
    estimate: 'POST /fine-tuning/jobs/estimate body',
    list: 'GET /fine-tuning/jobs page query',
    get: 'GET /fine-tuning/jobs/{job_id}',
    update: 'PATCH /fine-tuning/jobs/{job_id} body',
    cancel: 'POST /fine-tuning/jobs/{job_id}/cancel',
    delete: 'DELETE /fine-tuning/jobs/{job_id}',
    pause: 'POST /fine-tuning/jobs/{job_id}/pause',
    resume: 'POST /fine-tuning/jobs/{job_id}/resume',
    events: 'GET /fine-tuning/jobs/{job_id}/events lines query',
    evaluations: 'GET /fine-tuning/jobs/{job_id}/evaluations page query',
    checkpoints: 'GET /fine-tuning/jobs/{job_id}/checkpoints page query',
    rows: 'GET /fine-tuning/jobs/{job_id}/rows page query',
    heldOut: 'GET /fine-tuning/jobs/{job_id}/held-out page query',
    rollouts: {
      list: 'GET /fine-tuning/jobs/{job_id}/rollouts page query',
      get: 'GET /fine-tuning/jobs/{job_id}/rollouts/{step}',
    },
  },
  models: {
    import: 'POST /fine-tuning/models form:file',
    list: 'GET /fine-tuning/models page query',
    get: 'GET /fine-tuning/models/{model_id}',
    update: 'PATCH /fine-tuning/models/{model_id} body',
    delete: 'DELETE /fine-tuning/models/{model_id}',
    shares: {
      create: 'POST /fine-tuning/models/{model_id}/shares body',
      list: 'GET /fine-tuning/models/{model_id}/shares page query',
      delete: 'DELETE /fine-tuning/models/{model_id}/shares/{share_id}',
    },
    callable: { list: 'GET /models', get: 'GET /models/{model_id}' },
  },
  share: { look: 'POST /share/look body', chat: 'POST /share/chat events body' },
  deployments: {
    create: 'POST /deployments body',
    switch: 'PUT /deployments/{name} body',
    list: 'GET /deployments page query',
    get: 'GET /deployments/{name}',
    rollback: 'POST /deployments/{name}/rollback',
    history: 'GET /deployments/{name}/history page query',
    metrics: 'GET /deployments/{name}/metrics query',
    scaling: {
      set: 'PUT /deployments/{name}/scaling body',
      get: 'GET /deployments/{name}/scaling',
      remove: 'DELETE /deployments/{name}/scaling',
    },
    delete: 'DELETE /deployments/{name}',
  },
  graders: {
    run: 'POST /fine_tuning/alpha/graders/run body',
    validate: 'POST /fine_tuning/alpha/graders/validate body',
    secret: 'GET /graders/secrets/{name}',
  },
  evaluations: {
    create: 'POST /evaluations body',
    list: 'GET /evaluations page query',
    get: 'GET /evaluations/{evaluation_id}',
    rows: 'GET /evaluations/{evaluation_id}/rows page query',
    cancel: 'POST /evaluations/{evaluation_id}/cancel',
    delete: 'DELETE /evaluations/{evaluation_id}',
  },
  exports: {
    create: 'POST /exports body',
    list: 'GET /exports page query',
    get: 'GET /exports/{export_id}',
    events: 'GET /exports/{export_id}/events lines query',
    download: 'GET /exports/{export_id}/download file query',
    delete: 'DELETE /exports/{export_id}',
  },
  webhooks: {
    create: 'POST /webhooks body',
    list: 'GET /webhooks page query',
    get: 'GET /webhooks/{webhook_id}',
    update: 'PUT /webhooks/{webhook_id} body',
    delete: 'DELETE /webhooks/{webhook_id}',
    rotateSecret: 'POST /webhooks/{webhook_id}/rotate body',
    test: 'POST /webhooks/{webhook_id}/test',
    deliveries: {
      list: 'GET /webhooks/{webhook_id}/deliveries page query',
      get: 'GET /webhooks/{webhook_id}/deliveries/{delivery_id}',
      redeliver: 'POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver',
    },
  },
  chat: {
    completions: {
      create: 'POST /chat/completions events body',
      batch: 'POST /chat/completions/batch body',
      list: 'GET /chat/completions list query',
      get: 'GET /chat/completions/{completion_id}',
      messages: 'GET /chat/completions/{completion_id}/messages list query',
      update: 'POST /chat/completions/{completion_id} body',
      delete: 'DELETE /chat/completions/{completion_id}',
      deleteMany: 'POST /chat/completions/delete body',
    },
  },
  completions: { create: 'POST /completions events body' },
  embeddings: { create: 'POST /embeddings body' },
  responses: {
    create: 'POST /responses events body',
    get: 'GET /responses/{response_id} query',
    inputItems: 'GET /responses/{response_id}/input_items list query',
    delete: 'DELETE /responses/{response_id}',
  },
  batches: {
    create: 'POST /batches body',
    list: 'GET /batches list query',
    get: 'GET /batches/{batch_id}',
    cancel: 'POST /batches/{batch_id}/cancel',
  },
  files: {
    upload: 'POST /files form:file',
    list: 'GET /files list query',
    get: 'GET /files/{file_id}',
    content: 'GET /files/{file_id}/content file',
    delete: 'DELETE /files/{file_id}',
  },
  uploads: {
    create: 'POST /uploads body',
    addPart: 'POST /uploads/{upload_id}/parts form:data',
    complete: 'POST /uploads/{upload_id}/complete body',
    cancel: 'POST /uploads/{upload_id}/cancel',
  },
  evals: {
    create: 'POST /evals body',
    list: 'GET /evals list query',
    get: 'GET /evals/{eval_id}',
    update: 'POST /evals/{eval_id} body',
    delete: 'DELETE /evals/{eval_id}',
    runs: {
      create: 'POST /evals/{eval_id}/runs body',
      list: 'GET /evals/{eval_id}/runs list query',
      get: 'GET /evals/{eval_id}/runs/{run_id}',
      cancel: 'POST /evals/{eval_id}/runs/{run_id}/cancel',
      delete: 'DELETE /evals/{eval_id}/runs/{run_id}',
      outputItems: {
        list: 'GET /evals/{eval_id}/runs/{run_id}/output_items list query',
        get: 'GET /evals/{eval_id}/runs/{run_id}/output_items/{output_item_id}',
      },
    },
  },
  openaiFineTuning: {
    jobs: {
      create: 'POST /fine_tuning/jobs body',
      list: 'GET /fine_tuning/jobs list query',
      get: 'GET /fine_tuning/jobs/{job_id}',
      cancel: 'POST /fine_tuning/jobs/{job_id}/cancel',
      pause: 'POST /fine_tuning/jobs/{job_id}/pause',
      resume: 'POST /fine_tuning/jobs/{job_id}/resume',
      events: 'GET /fine_tuning/jobs/{job_id}/events list query',
      checkpoints: 'GET /fine_tuning/jobs/{job_id}/checkpoints list query',
    },
    deleteModel: 'DELETE /models/{model_id}',
    permissions: {
      list: 'GET /fine_tuning/checkpoints/{checkpoint}/permissions list',
      create: 'POST /fine_tuning/checkpoints/{checkpoint}/permissions body',
      delete: 'DELETE /fine_tuning/checkpoints/{checkpoint}/permissions/{permission_id}',
    },
  },
}
