"""The exported names are a promise: adding one is a decision, losing one breaks somebody."""

import subprocess
import sys

import pytest

import roder_trio as rt

ERRORS = """
ActorCrashed AppendOutcomeUnknown BadWorkspace CommandRefused CompactionPreempted CorruptRecord DuplicateTool
EmptyMessage ToolDefinitionError ToolError
InvalidCursor InvalidRecord NoActiveTurn NotAStore ProviderFailure RoderTrioError RuntimeClosed RuntimeDraining
SchemaTooNew StaleWindow SteerQueueFull StorageError StoreClosed StoreInUse StoreReadOnly StoreUnsupported
LeaseLost SubscriptionOverrun ThreadOwnedElsewhere
ThreadBusy ThreadExists ThreadFailed ThreadNotFound UnknownProvider UnknownTurn UnsupportedOption
"""

NAMES = {
    "": f"""{ERRORS}
        open_runtime Runtime Turn RuntimeConfig ReliabilityConfig Deadlines GoalConfig ProviderFailureKind
        Cost TokenUsage TurnOutcome DrainOutcome ShutdownReport OutputOptions SteeringSignal
        ThreadStore InferenceEngine InferenceCapabilities EventSink
        ThreadSnapshot ThreadMetadata TurnRecord TurnStatus ThreadPage EventEnvelope ExtensionStateRecord OpaqueRecord
        Record StoredRecord LogPage
        Tool ToolSpec ToolContext ToolOutput tool Policy PolicyMode PolicyDecision Verdict Hook Deny Rewrite
        compaction events goals inference items providers stores tools transcript""",
    "compaction": """is_boundary trim_to_last_boundary CompactionResult NativeCompactionOutcome Compacted Preempted
        Unsupported""",
    "events": """ToolArgumentsRewritten ToolCallRepaired ToolStarted ToolProgress ToolFinished
        ToolOutputTruncated PolicyModeChanged PolicyDecided HookFailed ApprovalRequested ApprovalResolved
        ApprovalOutcome ExternalOutcome ExternalToolRequested ExternalToolResolved
        ContextCompactionCancelled ContextCompactionFailed ContextCompactionRecorded ContextCompactionSkipped
        ContextCompactionStarted ContextLimitRecovered ContextPruned Event GoalCleared GoalContinuationFailed
        GoalTimeRecorded GoalUpdated InferenceCompleted InferenceStarted
        ItemsReset Lagged LimitReached RetryScheduled SinkFailed SteerAccepted StorageRepaired ThreadArchived
        ThreadCreated ThreadDeleted ThreadFailedEvent ThreadMetadataChanged ThreadRecovered ThreadUnarchived
        TranscriptItemAppended TurnCompleted TurnFailed TurnInterruptRequested TurnInterrupted TurnStarted Unknown
        UsageRecorded""",
    "goals": "Goal GoalCause GoalPatch GoalStatus UNSET",
    "inference": """Compaction CompactionStatus Completed EngineTarget Failed HostedToolCallCompleted
        HostedToolCallStarted InferenceCapabilities InferenceEvent InferenceRequest Instructions MessageDelta
        ModelChoice ModelDescriptor OutputRequest Price ProviderMetadata Purpose ReasoningDelta ReasoningOptions
        RequestRuntime ToolCallCompleted ToolCallDelta ToolCallStarted ToolChoice ToolDefinition TurnContext Usage""",
    "items": """AgentMessage AgentMessageText Compaction Error ItemCompleted ItemDelta ItemDiscarded ItemEventKind
        ItemStarted ItemStatus Raw Reasoning ReasoningSummaryPartAdded ReasoningSummaryText ReasoningText ThreadItem
        ThreadItemEvent ToolExecution ToolInputText UserMessage""",
    "transcript": """AssistantMessage ContextCompaction ErrorNote Image OpaqueItem ProviderMetadata ReasoningSummary
        ToolCall ToolResult TranscriptItem UserMessage""",
    "stores": """CopyReport ImportReport SalvageReport JsonlThreadStore MemoryThreadStore PostgresThreadStore
        SqliteThreadStore StoreRepair
        copy_store export_thread import_roder import_thread salvage_thread""",
    "tools": "ExternalTool shell_tool workspace_tools",
    "providers": "Anthropic ChatCompletions Gemini Offline OpenAIResponses ScriptedEngine fallback",
}

METHODS = """
archive_thread compact_thread compact_with_provider create_thread delete_thread drain_active_turns get_state
follow_thread interrupt_turn pending_approvals resolve_approval resolve_external_tool set_policy_mode
        latest_transcript_item_index list_models list_threads load_metadata load_thread persist_turn_item
record_thread_item_event_kind resume_accepting_turns run_turn set_state shutdown_report start_turn steer_turn
continue_goal subscribe_events
thread_cost thread_goal_clear thread_goal_get thread_goal_set thread_item_exists thread_view turn
unarchive_thread update_thread wait_turn
"""


@pytest.mark.parametrize("module", NAMES)
def test_a_public_module_exports_the_names_it_promises_and_no_others(module: str) -> None:
    home = getattr(rt, module) if module else rt
    assert sorted(home.__all__) == sorted(NAMES[module].split())
    for name in home.__all__:
        assert getattr(home, name) is not None


def test_the_runtime_has_the_methods_it_promises_and_no_others() -> None:
    assert sorted(name for name in dir(rt.Runtime) if not name.startswith("_")) == sorted(METHODS.split())


def test_every_error_is_below_the_one_root_and_says_what_it_is() -> None:
    for name in ERRORS.split():
        error = getattr(rt, name)
        assert issubclass(error, rt.RoderTrioError)
        assert error.__doc__


def test_importing_the_package_loads_no_engine_no_store_and_no_http_client() -> None:
    script = (
        "import sys, roder_trio\n"
        "heavy = ('httpx', 'rich', 'cyclopts', 'pytest', 'roder_trio.providers.offline',"
        " 'roder_trio.providers._http', 'roder_trio.stores.jsonl', 'roder_trio.cli')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
