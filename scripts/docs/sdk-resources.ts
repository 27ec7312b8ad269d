// Where each operation of the contract stands in the client library: its resource and the method's name.
import * as accounts from '../../contract/accounts.ts'
import * as audit from '../../contract/audit.ts'
import * as batches from '../../contract/batches.ts'
import * as chat from '../../contract/chat.ts'
import * as completions from '../../contract/completions.ts'
import * as datasets from '../../contract/datasets.ts'
import * as deployments from '../../contract/deployments.ts'
import * as embeddings from '../../contract/embeddings.ts'
import * as evaluations from '../../contract/evaluations.ts'
import * as exports from '../../contract/exports.ts'
import * as files from '../../contract/files.ts'
import * as tuning from '../../contract/fine-tuning.ts'
import * as hub from '../../contract/hub.ts'
import * as inference from '../../contract/inference.ts'
import * as history from '../../contract/job-history.ts'
import * as keys from '../../contract/keys.ts'
import * as machine from '../../contract/machine.ts'
import * as members from '../../contract/members.ts'
import * as models from '../../contract/models.ts'
import * as evals from '../../contract/openai-evals.ts'
import * as openai from '../../contract/openai-fine-tuning.ts'
import * as graders from '../../contract/openai-graders.ts'
import * as operator from '../../contract/operator.ts'
import * as responses from '../../contract/responses.ts'
import type { Route } from '../../contract/route.ts'
import * as scaling from '../../contract/scaling.ts'
import * as sharing from '../../contract/sharing.ts'
import * as signIn from '../../contract/sign-in.ts'
import * as stored from '../../contract/stored-completions.ts'
import * as timeline from '../../contract/timeline.ts'
import * as usage from '../../contract/usage.ts'
import * as webhooks from '../../contract/webhooks.ts'

/** Resources, nested as `tunery.chat.completions.create` is. */
export interface Resources {
  [name: string]: Route | Resources
}

export const resources: Resources = {
  user: {
    profile: accounts.getProfile,
    presence: accounts.getPresence,
    update: signIn.changeUser,
    setPassword: signIn.setPassword,
    passkeys: {
      options: signIn.getPasskeyOptions,
      add: signIn.addPasskey,
      list: signIn.listPasskeys,
      remove: signIn.removePasskey,
    },
    identities: { list: signIn.listOwnIdentities, remove: signIn.removeOwnIdentity },
  },
  signIn: {
    ways: signIn.getSignIn,
    withPassword: signIn.signInWithPassword,
    withLink: signIn.signInWithLink,
    passkeyOptions: signIn.getPasskeyChallenge,
    withPasskey: signIn.signInWithPasskey,
    accounts: signIn.listAccountChoices,
    chooseAccount: signIn.chooseAccount,
    lookAtInvitation: signIn.lookAtInvitation,
    acceptInvitation: signIn.acceptInvitation,
  },
  session: { get: signIn.getSession, end: signIn.endSession },
  sessions: { list: signIn.listSessions, end: signIn.endOneSession, endOthers: signIn.endOtherSessions },
  invitations: { create: signIn.createInvitation, list: signIn.listInvitations, withdraw: signIn.withdrawInvitation },
  audit: { list: audit.listAudit },
  keys: {
    create: keys.createKey,
    list: keys.listKeys,
    get: keys.getKey,
    rename: keys.renameKey,
    revoke: keys.revokeKey,
  },
  members: {
    add: members.addMember,
    list: members.listMembers,
    get: members.getMember,
    update: members.changeMember,
    remove: members.removeMember,
    identities: { list: members.listIdentities, remove: members.removeIdentity },
  },
  operator: {
    machine: machine.getMachine,
    usage: machine.getOperatorUsage,
    accounts: {
      create: operator.createAccount,
      list: operator.listAccounts,
      get: operator.getAccount,
      update: operator.changeAccount,
    },
  },
  usage: {
    get: usage.getUsage,
    storage: usage.getStorage,
    timeline: timeline.getTimeline,
    thresholds: { get: usage.getThresholds, set: usage.setThresholds },
  },
  hub: {
    list: hub.listModels,
    get: hub.getModel,
    tiers: hub.listTiers,
    featured: hub.listFeatured,
    machine: hub.getHubMachine,
    startDownload: hub.startDownload,
    cancelDownload: hub.cancelDownload,
    setup: { get: hub.getSetup, retry: hub.retrySetup },
  },
  datasets: {
    upload: datasets.uploadDataset,
    list: datasets.listDatasets,
    get: datasets.getDataset,
    update: datasets.changeDataset,
    delete: datasets.deleteDataset,
    validate: datasets.validateDataset,
    rows: datasets.listDatasetRows,
    preview: datasets.previewDataset,
    fromCompletions: stored.datasetOfStored,
  },
  jobs: {
    create: tuning.createJob,
    estimate: tuning.estimateJob,
    list: tuning.listJobs,
    get: tuning.getJob,
    update: tuning.changeJob,
    cancel: tuning.cancelJob,
    delete: tuning.deleteJob,
    pause: tuning.pauseJob,
    resume: tuning.resumeJob,
    events: tuning.jobEvents,
    evaluations: history.listEvaluations,
    checkpoints: history.listCheckpoints,
    rows: history.listJobRows,
    heldOut: history.listHeldOutRows,
    rollouts: { list: history.listRollouts, get: history.getRollouts },
  },
  models: {
    import: models.uploadAdapter,
    list: models.listTunedModels,
    get: models.getTunedModel,
    update: models.changeTunedModel,
    delete: models.deleteTunedModel,
    shares: { create: sharing.createShare, list: sharing.listShares, delete: sharing.deleteShare },
    callable: { list: inference.listCallableModels, get: inference.getCallableModel },
  },
  share: { look: sharing.lookAtShare, chat: sharing.chatWithShare },
  deployments: {
    create: deployments.createDeployment,
    switch: deployments.switchDeployment,
    list: deployments.listDeployments,
    get: deployments.getDeployment,
    rollback: deployments.rollbackDeployment,
    history: deployments.listDeploymentChanges,
    metrics: deployments.getDeploymentMetrics,
    scaling: { set: scaling.putScaling, get: scaling.getScaling, remove: scaling.deleteScaling },
    delete: deployments.deleteDeployment,
  },
  graders: { run: graders.runGrader, validate: graders.validateGrader, secret: graders.getGraderSecret },
  evaluations: {
    create: evaluations.createEvaluation,
    list: evaluations.listEvaluationRuns,
    get: evaluations.getEvaluation,
    rows: evaluations.listEvaluationRows,
    cancel: evaluations.cancelEvaluation,
    delete: evaluations.deleteEvaluation,
  },
  exports: {
    create: exports.createExport,
    list: exports.listExports,
    get: exports.getExport,
    events: exports.exportEvents,
    download: exports.downloadExport,
    delete: exports.deleteExport,
  },
  webhooks: {
    create: webhooks.createWebhook,
    list: webhooks.listWebhooks,
    get: webhooks.getWebhook,
    update: webhooks.changeWebhook,
    delete: webhooks.deleteWebhook,
    rotateSecret: webhooks.rotateSecret,
    test: webhooks.testWebhook,
    deliveries: { list: webhooks.listDeliveries, get: webhooks.getDelivery, redeliver: webhooks.redeliver },
  },
  chat: {
    completions: {
      create: chat.chatCompletions,
      batch: chat.chatBatch,
      list: stored.listStored,
      get: stored.getStored,
      messages: stored.listStoredMessages,
      update: stored.updateStored,
      delete: stored.deleteStored,
      deleteMany: stored.deleteManyStored,
    },
  },
  completions: { create: completions.completions },
  embeddings: { create: embeddings.embeddings },
  responses: {
    create: responses.createResponse,
    get: responses.getResponse,
    inputItems: responses.listInputItems,
    delete: responses.deleteResponse,
  },
  batches: {
    create: batches.createBatch,
    list: batches.listBatches,
    get: batches.getBatch,
    cancel: batches.cancelBatch,
  },
  files: {
    upload: files.uploadFile,
    list: files.listFiles,
    get: files.getFile,
    content: files.getFileContent,
    delete: files.deleteFile,
  },
  uploads: {
    create: files.createUpload,
    addPart: files.addUploadPart,
    complete: files.completeUpload,
    cancel: files.cancelUpload,
  },
  evals: {
    create: evals.createEval,
    list: evals.listEvals,
    get: evals.getEval,
    update: evals.updateEval,
    delete: evals.deleteEval,
    runs: {
      create: evals.createRun,
      list: evals.listRuns,
      get: evals.getRun,
      cancel: evals.cancelRun,
      delete: evals.deleteRun,
      outputItems: { list: evals.listOutputItems, get: evals.getOutputItem },
    },
  },
  openaiFineTuning: {
    jobs: {
      create: openai.createOpenaiJob,
      list: openai.listOpenaiJobs,
      get: openai.getOpenaiJob,
      cancel: openai.cancelOpenaiJob,
      pause: openai.pauseOpenaiJob,
      resume: openai.resumeOpenaiJob,
      events: openai.listOpenaiJobEvents,
      checkpoints: openai.listOpenaiCheckpoints,
    },
    deleteModel: openai.deleteModel,
    permissions: {
      list: openai.listCheckpointPermissions,
      create: openai.createCheckpointPermissions,
      delete: openai.deleteCheckpointPermission,
    },
  },
}
